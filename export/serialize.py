"""An ONNX file written weight by weight, so that writing takes no second copy of the model in memory.

A field of a protobuf message may be written in parts: whoever reads it merges them, and joins what is
repeated (Protocol Buffers, "Encoding", last one wins). So the graph comes first without its weights, and each
weight follows as a part of the graph that holds nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir

# Field numbers in onnx.proto
_GRAPH_OF_MODEL = 7
_INITIALIZER_OF_GRAPH = 5
_RAW_DATA_OF_TENSOR = 9


def write_model(model: onnx_ir.Model, path: Path) -> None:
    """Write `model` to `path` as one file, taking its weights out of it. They must be below 2 GiB in all."""
    import onnx_ir

    weights = dict(model.graph.initializers)
    model.graph.initializers.clear()
    with path.open("wb") as file:
        file.write(onnx_ir.to_proto(model).SerializeToString())
        for name, value in weights.items():
            assert value.const_value is not None
            for part in _initializer(name, value.const_value.numpy()):
                file.write(part)
            value.const_value = None  # torch's exporter keeps the graph, and with it would keep the weight


def _initializer(name: str, array: np.ndarray) -> Iterator[bytes | memoryview]:
    """A part of a model that is one weight of its graph."""
    import onnx

    tensor = onnx.TensorProto(
        name=name, dims=array.shape, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    ).SerializeToString()
    tensor += _header(_RAW_DATA_OF_TENSOR, array.nbytes)
    initializer = _header(_INITIALIZER_OF_GRAPH, len(tensor) + array.nbytes)
    yield _header(_GRAPH_OF_MODEL, len(initializer) + len(tensor) + array.nbytes)
    yield initializer
    yield tensor
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    yield np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).data


def _header(field: int, length: int) -> bytes:
    """What precedes a field of `length` bytes: its number and wire type, then the length, as varints."""
    return _varint(field << 3 | 2) + _varint(length)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
