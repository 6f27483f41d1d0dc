"""ONNX graphs of a few nodes, written out by hand: machines that only run models have no onnx package.

The field numbers are those of onnx.proto, the encoding is that of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

FLOAT, INT64 = 1, 7  # TensorProto.DataType
_IR_VERSION = b"\x08\x08"  # field 1: 8


def field(number: int, content: bytes | str) -> bytes:
    """A length-delimited field of a message (wire type 2)."""
    data = content.encode() if isinstance(content, str) else content
    length, size = b"", len(data)
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """A node without attributes."""
    names = [field(1, name) for name in inputs] + [field(2, name) for name in outputs]
    return b"".join(names) + field(4, operator)


def value(name: str, kind: int, shape: Sequence[int | None]) -> bytes:
    """An input or output. Sizes are below 128; None is any size."""
    sizes = b"".join(field(1, b"" if size is None else bytes([0x08, size])) for size in shape)
    return field(1, name) + field(2, field(1, bytes([0x08, kind]) + field(2, sizes)))


def model(nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes], opset: int) -> bytes:
    """An .onnx file with one graph."""
    graph = b"".join(field(1, each) for each in nodes) + field(2, "graph")
    graph += b"".join([field(11, each) for each in inputs] + [field(12, each) for each in outputs])
    return _IR_VERSION + field(7, graph) + field(8, bytes([0x10, opset]))
