"""Finding the bundle that a command is about."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gptblock.bundle.atomic import recover_folder
from gptblock.bundle.manifest import MANIFEST_NAME
from gptblock.errors import BundleError, CorruptError, NotFoundError

DEFAULT_RUN = Path("artifacts/model")  # where train writes, and where every command looks first


@dataclass(frozen=True)
class Location:
    """A bundle's folder, or a single .onnx; `is_demo` if it is the one that ships with gptblock."""

    path: Path
    kind: Literal["bundle", "file"]
    is_demo: bool = False


def find_bundle(path: Path | None) -> Location:
    """Where the bundle is: `path` is its folder, a run's folder, or an .onnx.

    None means artifacts/model of the working directory or, if that does not exist, the demo. A bundle
    that an interrupted writer left aside is put back first. Raises NotFoundError naming the command
    that makes what is missing, and CorruptError for what is there and cannot be a bundle.
    """
    try:
        if path is None:
            recover_folder(DEFAULT_RUN)
            if not DEFAULT_RUN.exists():
                return Location(_demo_folder(), "bundle", is_demo=True)
        return _find(path or DEFAULT_RUN)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise CorruptError(f"{path or DEFAULT_RUN} cannot be read: {error}") from None


def age_of(bundle: Path) -> str:
    """What to say of a bundle whose run has been trained further since; nothing where none has.

    Of a bundle in its run's folder; one that was copied elsewhere has no run beside it.
    """
    run = bundle.resolve().parent
    try:
        exported = json.loads((bundle / MANIFEST_NAME).read_text(encoding="utf-8"))["training"]["steps"]
        best, last = (
            json.loads((run / "checkpoints" / which / "state.json").read_text(encoding="utf-8"))["step"]
            for which in ("best", "last")
        )
    except (OSError, ValueError, KeyError, TypeError):  # no run, or none that was trained
        return ""
    if exported in (best, last):
        return ""
    return (
        f"this bundle is of step {exported}; the run's best is of step {best} by now, and its last of step "
        f"{last}: gptblock export {shlex.quote(str(run))} makes it anew"
    )


def _find(path: Path) -> Location:
    for folder in (path.parent, path, path / "bundle"):
        recover_folder(folder)
    if path.is_file():
        if path.suffix.lower() != ".onnx":
            raise CorruptError(f"{path} is a file, but no .onnx: give a bundle, a run folder or an .onnx")
        return Location(path, "file")
    for folder in (path, path / "bundle"):
        if (folder / MANIFEST_NAME).is_file():
            return Location(folder, "bundle")
    raise _absent(path)


def _absent(path: Path) -> BundleError:
    """The error for a place that holds no bundle, with what to do about it."""
    name = shlex.quote(str(path))
    if path.suffix.lower() == ".onnx" and not path.exists():
        return NotFoundError(f"there is no {path}: gptblock export RUN writes RUN/bundle/model.onnx")
    if not path.exists():
        return NotFoundError(f"there is no {path}: gptblock train --out {name}, then gptblock export {name}")
    for folder in (path, path / "bundle"):
        # The standard one first: those with more dots in their names have their weights elsewhere.
        if graphs := sorted(folder.glob("*.onnx"), key=lambda graph: (graph.name.count("."), graph.name)):
            return CorruptError(
                f"{folder} has graphs but no {MANIFEST_NAME}: export it again, or give {graphs[0]}"
            )
    if (path / "checkpoints").is_dir():
        return NotFoundError(f"{path} is a run without a bundle: gptblock export {name}")
    return NotFoundError(
        f"{path} holds neither a bundle nor a run: give a folder that gptblock train, convert or export wrote"
    )


def _demo_folder() -> Path:
    """The demo's folder, whether installed or in a source tree."""
    from importlib.resources import files

    try:
        manifest = Path(str(files("gptblock.demo") / MANIFEST_NAME))
    except ModuleNotFoundError:
        manifest = None
    if manifest is None or not manifest.is_file():
        raise NotFoundError(
            f"there is no {DEFAULT_RUN} here, and no demo installed: gptblock train, then gptblock export"
        )
    return manifest.parent
