"""What each path means, and what is said of one that means nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import gptblock
from gptblock.bundle.locate import Location, age_of, find_bundle
from gptblock.errors import BundleError, CorruptError, NotFoundError


@pytest.fixture
def run(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with its bundle, in the working directory; the name is not a tame one."""
    run = tmp_path / "cwd" / "dir é ☃ x"
    (run / "checkpoints").mkdir(parents=True)
    bundle.rename(run / "bundle")
    monkeypatch.chdir(run.parent)
    return run


@pytest.mark.parametrize("form", ["absolute", "relative", "trailing slash", "with dots", "link"])
@pytest.mark.parametrize(
    ("inside", "kind"), [("", "bundle"), ("bundle", "bundle"), ("bundle/model.int8.onnx", "file")]
)
def test_a_run_a_bundle_or_a_graph(run: Path, form: str, inside: str, kind: str) -> None:
    (run.parent / "link").symlink_to(run, target_is_directory=True)
    base = {
        "absolute": str(run),
        "relative": run.name,
        "trailing slash": f"{run.name}/",
        "with dots": f"../cwd/./{run.name}",
        "link": "link",
    }[form]
    slash = "/" if form == "trailing slash" and kind == "bundle" else ""
    found = find_bundle(Path(f"{base}/{inside}{slash}"))
    assert found.kind == kind
    assert found.path.samefile(run / (inside or "bundle"))
    assert not found.is_demo


def write_states(run: Path, best: int, last: int) -> None:
    for which, step in (("best", best), ("last", last)):
        (run / "checkpoints" / which).mkdir(exist_ok=True)
        (run / "checkpoints" / which / "state.json").write_text(json.dumps({"step": step}))


def test_a_bundle_whose_run_went_on_says_so(run: Path) -> None:
    manifest = json.loads((run / "bundle/manifest.json").read_text())
    manifest["training"]["steps"] = 200
    (run / "bundle/manifest.json").write_text(json.dumps(manifest))
    assert age_of(run / "bundle") == ""  # no checkpoint beside it
    write_states(run, best=200, last=250)
    assert age_of(run / "bundle") == ""
    write_states(run, best=150, last=200)  # exported with --checkpoint last
    assert age_of(run / "bundle") == ""
    write_states(run, best=500, last=600)
    assert re.match(
        r"this bundle is of step 200; the run's best is of step 500 by now, and its last of step 600: "
        r"gptblock export '.*dir é ☃ x' makes it anew",
        age_of(run / "bundle"),
    )
    manifest["training"] = None  # of a converted model
    (run / "bundle/manifest.json").write_text(json.dumps(manifest))
    assert age_of(run / "bundle") == ""


def test_the_working_directory_itself(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    assert find_bundle(Path()) == Location(Path("bundle"), "bundle")
    monkeypatch.chdir(run / "bundle")
    assert find_bundle(Path()) == Location(Path(), "bundle")


def test_without_a_path_it_is_the_default_run(run: Path) -> None:
    (run.parent / "artifacts").mkdir()
    run.rename(run.parent / "artifacts" / "model")
    assert find_bundle(None) == Location(Path("artifacts/model/bundle"), "bundle")


def test_a_default_run_without_a_bundle_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "artifacts" / "model" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match=r"is a run without a bundle: gptblock export artifacts/model$"):
        find_bundle(None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that gptblock's subpackages are looked for in; no default run in the working directory."""
    (tmp_path / "package").mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr(gptblock, "__path__", [str(tmp_path / "package")])
    monkeypatch.delitem(sys.modules, "gptblock.demo", raising=False)
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "editable" not in repr(f).lower()])
    return tmp_path / "package"


def test_without_any_run_it_is_the_demo(package: Path, bundle: Path) -> None:
    bundle.rename(package / "demo")
    assert find_bundle(None) == Location(package / "demo", "bundle", is_demo=True)


@pytest.mark.parametrize("folder", [False, True])
def test_an_installation_without_a_demo(package: Path, folder: bool) -> None:
    if folder:
        (package / "demo").mkdir()
    with pytest.raises(NotFoundError, match="no demo installed: gptblock train, then gptblock export"):
        find_bundle(None)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        ((), NotFoundError, "there is no a b: gptblock train --out 'a b', then gptblock export 'a b'"),
        (
            ("notes.txt",),
            NotFoundError,
            "a b holds neither a bundle nor a run: give a folder that",
        ),
        (
            ("checkpoints/best/state.json",),
            NotFoundError,
            "a b is a run without a bundle: gptblock export 'a b'",
        ),
        (("model.onnx",), CorruptError, f"export it again, or give {Path('a b', 'model.onnx')}"),
        (("bundle/x.onnx",), CorruptError, f"export it again, or give {Path('a b', 'bundle', 'x.onnx')}"),
    ],
)
def test_a_folder_that_is_no_bundle(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: tuple[str, ...],
    error: type[BundleError],
    message: str,
) -> None:
    for name in make:
        (tmp_path / "a b" / name).parent.mkdir(parents=True)
        (tmp_path / "a b" / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=re.escape(message)):
        find_bundle(Path("a b"))


@pytest.mark.parametrize("name", ["text.txt", "model.pt", "model.onnx.data"])
def test_a_file_that_is_no_graph(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(
        CorruptError, match=f"{name} is a file, but no .onnx: give a bundle, a run folder or an .onnx"
    ):
        find_bundle(tmp_path / name)


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b"])
def test_a_path_that_no_system_has(path: str) -> None:
    with pytest.raises(BundleError):
        find_bundle(Path(path))


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(CorruptError, match=r"cannot be read: .*Permission denied"):
        find_bundle(tmp_path)


@pytest.mark.parametrize("asked", ["", "bundle", "bundle/model.onnx"])
def test_a_bundle_that_was_set_aside_is_put_back(run: Path, asked: str) -> None:
    (run / ".bundle.new-0123abcd").mkdir()
    (run / "bundle").rename(run / ".bundle.new-0123abcd" / "old")
    assert find_bundle(run / asked).path == run / (asked or "bundle")
    assert (run / "bundle" / "manifest.json").is_file()


def test_an_absent_onnx_is_not_taken_for_a_run(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nope\.onnx: gptblock export RUN writes RUN/bundle"):
        find_bundle(tmp_path / "nope.onnx")
