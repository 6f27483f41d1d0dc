"""A bundle's folder is read if it is as it was written; otherwise each fault is named."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gptblock.bundle.locate import Location
from gptblock.bundle.manifest import FileEntry, Manifest
from gptblock.bundle.store import check_files, hash_file, model_path, model_paths, read_manifest
from gptblock.errors import BundleError, ConfigError, CorruptError, NotFoundError


def test_a_bundle_as_it_was_written(bundle: Path, manifest: Manifest) -> None:
    assert read_manifest(bundle) == manifest
    assert check_files(bundle, manifest) == []


def test_the_hash_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert hash_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("model.onnx", Path.unlink, "model.onnx: missing"),
        ("model.onnx", as_folder, "model.onnx: not a file"),
        ("model.onnx", lambda path: path.write_bytes(b"gra"), "model.onnx: 3 bytes, and 5 were written"),
        (
            "model.onnx",
            lambda path: path.write_bytes(b"grapH"),
            f"model.onnx: SHA-256 is [0-9a-f]{{64}}, and {'[0-9a-f]' * 64} was written",
        ),
        ("weights.pt", lambda path: path.write_bytes(b""), "weights.pt: not in the manifest"),
        ("cache", lambda path: path.mkdir(), "cache: not in the manifest"),
    ],
)
def test_every_fault_is_found(
    bundle: Path, manifest: Manifest, name: str, change: Callable[[Path], object], problem: str
) -> None:
    change(bundle / name)
    problems = check_files(bundle, manifest)
    assert len(problems) == 1
    assert re.fullmatch(problem, problems[0])


def test_faults_are_found_together(bundle: Path, manifest: Manifest) -> None:
    (bundle / "README.md").unlink()
    (bundle / "model.int8.onnx").write_bytes(b"SMALL")
    (bundle / "b").touch()
    (bundle / "a").touch()
    assert [problem.split(":")[0] for problem in check_files(bundle, manifest)] == [
        "README.md", "model.int8.onnx", "a", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (Path.unlink, NotFoundError, "bundle has no manifest.json: gptblock export RUN"),
        (
            lambda path: path.write_bytes(b'{"a": "caf\xe9"}'),
            CorruptError,
            "manifest.json is not UTF-8 at byte 10",
        ),
        (
            lambda path: path.write_text(path.read_text()[:99]),
            CorruptError,
            "manifest.json cannot be read as JSON",
        ),
        (as_folder, CorruptError, "manifest.json cannot be read: Is a directory"),
    ],
)
def test_a_manifest_that_cannot_be_read(
    bundle: Path, change: Callable[[Path], object], error: type[BundleError], message: str
) -> None:
    change(bundle / "manifest.json")
    with pytest.raises(error, match=re.escape(message)):
        read_manifest(bundle)


@pytest.mark.parametrize("name", ["model.onnx", "golden.safetensors", "manifest.json"])
@pytest.mark.parametrize("relative", [False, True])
def test_a_link_that_leads_out_is_refused_and_left_alone(
    bundle: Path, tmp_path: Path, name: str, relative: bool
) -> None:
    outside = tmp_path / "outside.bin"
    (bundle / name).rename(outside)
    (bundle / name).symlink_to(Path("..", "outside.bin") if relative else outside)
    content = outside.read_bytes()
    with pytest.raises(
        CorruptError, match=rf"{re.escape(name)} is a link out of the bundle, to .*outside\.bin"
    ):
        read_manifest(bundle)
    assert outside.read_bytes() == content


def test_links_that_stay_inside_are_followed(bundle: Path, tmp_path: Path, manifest: Manifest) -> None:
    os.link(bundle / "model.onnx", bundle / "blob")
    (bundle / "model.onnx").unlink()
    (bundle / "model.onnx").symlink_to("blob")
    (tmp_path / "link").symlink_to(bundle, target_is_directory=True)
    assert read_manifest(tmp_path / "link") == manifest


def test_the_graph_of_a_precision(bundle: Path) -> None:
    assert model_path(Location(bundle, "bundle"), "fp32") == bundle / "model.onnx"
    assert model_path(Location(bundle, "bundle"), "int8") == bundle / "model.int8.onnx"
    assert model_path(Location(bundle / "model.int8.onnx", "file"), "fp32") == bundle / "model.int8.onnx"


def test_a_precision_that_is_not_there(bundle: Path) -> None:
    with pytest.raises(
        NotFoundError, match="has no fp16 graph; it has fp32, int8: give --precision one of these"
    ):
        model_path(Location(bundle, "bundle"), "fp16")


@pytest.mark.parametrize(("change", "size"), [(Path.unlink, 0), (lambda path: path.write_bytes(b"gra"), 3)])
def test_a_graph_cut_short(bundle: Path, change: Callable[[Path], object], size: int) -> None:
    change(bundle / "model.onnx")
    what = f"was cut short: it has {size} bytes, and 5 were written" if size else "is missing or empty"
    with pytest.raises(CorruptError, match=f"model.onnx {what}; copy it again, or export it again"):
        model_path(Location(bundle, "bundle"), "fp32")


def test_the_graphs_for_the_cpu(bundle: Path, manifest: Manifest) -> None:
    location = Location(bundle, "bundle")
    assert model_paths(location, "fp32") == (bundle / "model.onnx", None, None)
    cpu = bundle / "model.cpu.onnx"
    cpu.write_bytes(b"fast")
    batch = bundle / "model.int8.batch.onnx"
    batch.write_bytes(b"wide")
    entries = {
        cpu.name: FileEntry(size=4, sha256=hash_file(cpu), precision="fp32", weights="model.onnx"),
        batch.name: FileEntry(size=4, sha256=hash_file(batch), precision="int8", weights="model.int8.onnx"),
    }
    manifest = dataclasses.replace(manifest, files=manifest.files | entries)
    (bundle / "manifest.json").write_text(manifest.to_json())
    assert model_paths(location, "fp32") == (bundle / "model.onnx", cpu, None)
    assert model_paths(location, "int8") == (bundle / "model.int8.onnx", None, batch)
    assert model_paths(Location(cpu, "file"), "fp32") == (cpu, None, None)
    cpu.write_bytes(b"cut")
    with pytest.raises(CorruptError, match=r"model\.cpu\.onnx was cut short: it has 3 bytes"):
        model_paths(location, "fp32")


def test_weights_in_a_file_that_there_is_not(manifest: Manifest) -> None:
    entry = dataclasses.replace(manifest.files["model.onnx"], weights="model.bin")
    with pytest.raises(
        ConfigError, match=r"^weights of model\.cpu\.onnx must be of .*model\.onnx.*: got model\.bin$"
    ):
        dataclasses.replace(manifest, files=manifest.files | {"model.cpu.onnx": entry})
