"""ONNX files without a second copy of the model in memory: written weight by weight, read without weights.

A field of a protobuf message may be written in parts: whoever reads it merges them, and joins what is
repeated (Protocol Buffers, "Encoding", last one wins). So the graph comes first without its weights, and each
weight follows as a part of the graph that holds nothing else.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir
    from onnx import ModelProto, TensorProto

# Field numbers in onnx.proto
_GRAPH_OF_MODEL = 7
_INITIALIZER_OF_GRAPH = 5
_RAW_DATA_OF_TENSOR = 9

_SMALL = 1024  # bytes of a weight that is read as it is; ONNX Runtime asks some small ones to be in the graph


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


def read_outline(path: Path) -> ModelProto:
    """The model in `path`, of each large weight only the place: that file, where in it, how many bytes.

    Written into the same folder, it is the same model (ONNX, "External Data").
    """
    import onnx

    weights: list[TensorProto] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        parts: list[bytes] = []
        for number, field, content in _fields(data, 0, len(data)):
            if number != _GRAPH_OF_MODEL:
                parts.append(data[field.start : field.stop])
                continue
            graph: list[bytes] = []
            for number, field, inner in _fields(data, content.start, content.stop):
                if number == _INITIALIZER_OF_GRAPH:
                    weights.append(_outline(data, inner, path.name))
                else:
                    graph.append(data[field.start : field.stop])
            parts += [_header(_GRAPH_OF_MODEL, sum(map(len, graph))), *graph]
        model: ModelProto = onnx.ModelProto.FromString(b"".join(parts))
    model.graph.initializer.extend(weights)
    return model


def _outline(data: mmap.mmap, place: range, file_name: str) -> TensorProto:
    """The tensor at `place`; in place of its bytes, if they are many, where they are."""
    import onnx

    raw, parts = range(0), []
    for number, field, content in _fields(data, place.start, place.stop):
        if number == _RAW_DATA_OF_TENSOR and len(content) > _SMALL:
            raw = content
        else:
            parts.append(data[field.start : field.stop])
    tensor: TensorProto = onnx.TensorProto.FromString(b"".join(parts))
    if raw:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", file_name), ("offset", raw.start), ("length", len(raw))):
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, range, range]]:
    """The fields of a message: number, the bytes of all of it, and those of its content."""
    while start < stop:
        tag, content = _read_varint(data, start)
        match tag & 7:  # wire type
            case 0:
                end = _read_varint(data, content)[1]
            case 1:
                end = content + 8
            case 2:
                length, content = _read_varint(data, content)
                end = content + length
            case _:
                end = content + 4
        yield tag >> 3, range(start, end), range(content, end)
        start = end


def _read_varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The number at `at`, and where what follows it begins."""
    value = shift = 0
    while data[at] > 0x7F:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


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
