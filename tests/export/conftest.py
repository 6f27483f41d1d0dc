"""Exporting any model to a file, and opening it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from gptblock.bundle.manifest import ModelMetadata, Precision
from gptblock.export.onnx import export_onnx
from gptblock.export.quantize import quantize
from gptblock.model.gpt import GPT


class ExportTo(Protocol):
    def __call__(
        self, model: GPT, path: Path, precision: Precision = "fp32", fp32: Path | None = None
    ) -> Path: ...


@pytest.fixture(scope="session")
def export_to() -> ExportTo:
    """Writes a model's ONNX file, with a vocabulary of as many symbols as it has.

    In int8 and int4 it is made of the file `fp32`.
    """

    def export(model: GPT, path: Path, precision: Precision = "fp32", fp32: Path | None = None) -> Path:
        vocab = "".join(chr(ord("0") + i) for i in range(model.config.vocab_size))
        metadata = ModelMetadata(model.config, {"type": "char", "vocab": vocab}, precision)
        if precision in ("int8", "int4"):
            assert fp32
            quantize(fp32, path, metadata)
        else:
            export_onnx(model, path, metadata)
        return path

    return export
