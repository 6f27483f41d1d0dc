"""A bundle whose files are a few bytes each: the room does not look into a graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from gptblock.bundle.manifest import Check, FileEntry, Manifest, TrainingRecord
from gptblock.bundle.store import hash_file
from gptblock.config import ModelConfig

CONTENT = {
    "model.onnx": b"graph",
    "model.int8.onnx": b"small",
    "golden.safetensors": b"golden",
    "README.md": b"# Card\n",
}
PRECISION = {"model.onnx": "fp32", "model.int8.onnx": "int8"}
CHECKS = (Check("logits", 48, 5e-7, 1e-5), Check("causality", 64, 0.0, 0.0))


def make_manifest(folder: Path) -> Manifest:
    """The manifest of the files in `folder`."""
    return Manifest(
        model=ModelConfig(vocab_size=3, block_size=8, n_layer=1, n_head=1, n_embd=4),
        tokenizer={"type": "char", "vocab": "a\n☃"},
        training=TrainingRecord(
            "text.txt", "0" * 64, 20, 1.25, 1.5, "gptblock train text.txt", {"max_iters": 20, "init": "gpt2"}
        ),
        files={
            path.name: FileEntry(
                size=path.stat().st_size,
                sha256=hash_file(path),
                precision=PRECISION.get(path.name),
                checks=CHECKS if path.name in PRECISION else (),
            )
            for path in sorted(folder.iterdir())
        },
        versions={"gptblock": "0.1.0", "torch": "2.13.0"},
        created="2026-11-30T12:00:00+00:00",
    )


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return make_manifest(write_files(tmp_path / "for the manifest"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder with every file of a bundle."""
    folder = write_files(tmp_path / "bundle")
    text = make_manifest(folder).to_json()
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    return folder


def write_files(folder: Path) -> Path:
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder
