"""Exporting any model to a file, and opening it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gptblock.bundle.manifest import ModelMetadata
from gptblock.export.onnx import export_onnx
from gptblock.model.gpt import GPT

ExportTo = Callable[[GPT, Path], Path]


@pytest.fixture(scope="session")
def export_to() -> ExportTo:
    """Writes a model's ONNX file, with a vocabulary of as many symbols as it has."""

    def export(model: GPT, path: Path) -> Path:
        vocab = "".join(chr(ord("0") + i) for i in range(model.config.vocab_size))
        export_onnx(model, path, ModelMetadata(model.config, {"type": "char", "vocab": vocab}, "fp32"))
        return path

    return export
