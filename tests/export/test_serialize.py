"""The file written weight by weight is the one that onnx itself would write, to whoever reads it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest

from gptblock.export.serialize import _varint, write_model


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**31, b"\x80\x80\x80\x80\x08")],
)
def test_varints(value, encoded):
    assert _varint(value) == encoded


def test_onnx_reads_the_same_model(tiny_bundle, tmp_path):
    original = onnx.load(tiny_bundle / "model.onnx")
    weights = [
        np.float32(np.pi).reshape(()),
        np.zeros((0, 3), np.float32),
        np.arange(6).reshape(2, 3).T,  # not contiguous
        np.array([1.5, -2], np.float16),
        np.array([True, False]),
    ]
    for i, weight in enumerate(weights):
        original.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"more.{i}"))
    write_model(onnx_ir.from_proto(original), tmp_path / "model.onnx")
    again = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    assert len(again.graph.initializer) == len(original.graph.initializer) > 5
    for read, tensor in zip(again.graph.initializer, original.graph.initializer, strict=True):
        assert (read.name, read.data_type) == (tensor.name, tensor.data_type)
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(read), onnx.numpy_helper.to_array(tensor))
    for model in (again, original):
        del model.graph.initializer[:]
    assert again == original
