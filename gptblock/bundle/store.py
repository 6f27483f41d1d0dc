"""Reading a bundle's folder, and refusing what is not as it was written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, NamedTuple

from gptblock.bundle.atomic import recover_folder, replace_folder, write_file
from gptblock.bundle.fields import corrupt
from gptblock.bundle.locate import Location, find_bundle
from gptblock.bundle.manifest import MANIFEST_NAME, FileEntry, Manifest
from gptblock.bundle.tensors import read_tensors, write_tensors
from gptblock.errors import CorruptError, NotFoundError

__all__ = [
    "Location",
    "Graphs",
    "find_bundle",
    "model_path",
    "model_paths",
    "beside",
    "read_manifest",
    "check_files",
    "find_problems",
    "hash_file",
    "write_file",
    "replace_folder",
    "recover_folder",
    "read_tensors",
    "write_tensors",
]


class Graphs(NamedTuple):
    """The files of one precision: the same model, and the same weights, which are in the first."""

    standard: Path
    cpu: Path | None = None  # what ONNX Runtime's CPU provider runs faster, by operators of its own
    batch: Path | None = None  # what it runs faster still for many rows, where it multiplies bytes slowly


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle's folder; whether the files are as it says is for `check_files`.

    Raises NotFoundError, or CorruptError: not readable, not ours, too new, or a file of the bundle is a
    link that leads out of the folder.
    """
    path = folder / MANIFEST_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{folder} has no {MANIFEST_NAME}: gptblock export RUN writes a bundle") from None
    except UnicodeDecodeError as error:
        raise corrupt(str(path), f"is not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise CorruptError(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    manifest = Manifest.from_json(text, source=str(path))
    for name in (MANIFEST_NAME, *manifest.files):
        end = (folder / name).resolve()
        if not end.is_relative_to(folder.resolve()):
            raise CorruptError(
                f"{folder / name} is a link out of the bundle, to {end}: put the file itself there"
            )
    return manifest


def model_path(location: Location, precision: str) -> Path:
    """The .onnx of a bundle that has `precision`; a single .onnx is taken as it is.

    Raises as `model_paths` does.
    """
    return model_paths(location, precision)[0]


def model_paths(location: Location, precision: str) -> Graphs:
    """`model_path`, and those beside it where there are any.

    Raises NotFoundError naming the precisions that are there, and CorruptError for a file cut short:
    the size is compared, the hash is not.
    """
    if location.kind == "file":
        return Graphs(location.path)
    folder = location.path
    manifest = read_manifest(folder)
    graphs = [(name, entry) for name, entry in manifest.files.items() if name.endswith(".onnx")]
    standard = {str(entry.precision): name for name, entry in graphs if not entry.weights}
    if precision not in standard:
        raise NotFoundError(
            f"{folder} has no {precision} graph; it has {', '.join(sorted(standard)) or 'none'}: "
            f"give --precision one of these, or auto; gptblock export RUN --precision {precision} writes it"
        )
    name = standard[precision]
    cpu, batch = beside(name, "cpu"), beside(name, "batch")
    return Graphs(
        _whole(folder, manifest, name),
        cpu=_whole(folder, manifest, cpu) if cpu in manifest.files else None,
        batch=_whole(folder, manifest, batch) if batch in manifest.files else None,
    )


def beside(name: str, role: Literal["cpu", "batch"]) -> str:
    """The file name of a graph whose weights are in the .onnx `name`."""
    return f"{name.removesuffix('.onnx')}.{role}.onnx"


def _whole(folder: Path, manifest: Manifest, name: str) -> Path:
    """The file, which is as large as it was written."""
    path = folder / name
    size, written = path.stat().st_size if path.is_file() else 0, manifest.files[name].size
    if size != written:
        what = (
            f"was cut short: it has {size} bytes, and {written} were written"
            if size
            else "is missing or empty"
        )
        raise CorruptError(f"{path} {what}; copy it again, or export it again (gptblock export RUN)")
    return path


def check_files(folder: Path, manifest: Manifest) -> list[str]:
    """What is wrong with the files of a bundle, one line each: size, hash, missing, or not listed."""
    return [f"{name}: {problem}" for name, problem in find_problems(folder, manifest).items()]


def find_problems(folder: Path, manifest: Manifest) -> dict[str, str]:
    """The same by file; a file that is as it was written is not in it."""
    found = {name: _problem(folder / name, entry) for name, entry in manifest.files.items()}
    listed = {MANIFEST_NAME, *manifest.files}
    extra = sorted(path.name for path in folder.iterdir() if path.name not in listed)
    return {name: problem for name, problem in found.items() if problem} | dict.fromkeys(
        extra, "not in the manifest"
    )


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _problem(path: Path, entry: FileEntry) -> str | None:
    if not path.is_file():
        return "not a file" if path.exists() else "missing"
    if (size := path.stat().st_size) != entry.size:
        return f"{size} bytes, and {entry.size} were written"
    if (sha256 := hash_file(path)) != entry.sha256:
        return f"SHA-256 is {sha256}, and {entry.sha256} was written"
    return None
