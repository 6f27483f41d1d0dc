"""The smallest proof that an execution provider works: one matrix product, run and checked."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

ProviderList = Sequence[str | tuple[str, dict[str, str]]]


def _field(number: int, content: bytes | str) -> bytes:
    """A length-delimited field of a protobuf message (wire type 2), shorter than 128 bytes."""
    data = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2, len(data)]) + data


# y = MatMul(x, x), float32 (2, 2), as an ONNX file written out by hand, since runtime machines have no
# onnx package. The field numbers are those of onnx.proto; b"\x08" and b"\x10" begin an integer, in
# field 1 and in field 2.
_SHAPE = 2 * _field(1, b"\x08\x02")  # dim { dim_value: 2 }, twice
_TYPE = _field(1, b"\x08\x01" + _field(2, _SHAPE))  # tensor_type { elem_type: FLOAT, shape }
_NODE = _field(1, "x") + _field(1, "x") + _field(2, "y") + _field(4, "MatMul")
_GRAPH = (
    _field(1, _NODE)
    + _field(2, "probe")
    + _field(11, _field(1, "x") + _field(2, _TYPE))
    + _field(12, _field(1, "y") + _field(2, _TYPE))
)
MODEL = b"\x08\x08" + _field(7, _GRAPH) + _field(8, b"\x10\x0d")  # ir_version 8, opset 13


def probe(ort: ModuleType, providers: ProviderList) -> str:
    """Run a matrix product on `providers`; returns the name of the provider that ONNX Runtime took.

    Opening alone proves little: cuDNN is loaded when something runs. Raises what ONNX Runtime raises,
    and RuntimeError for a wrong product.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(MODEL, options, providers=list(providers), enable_fallback=0)
    x = np.array([[1, 1], [0, 1]], np.float32)
    (y,) = session.run(None, {"x": x})
    if not np.array_equal(y, [[1, 2], [0, 1]]):
        raise RuntimeError(f"a 2 x 2 matrix product is wrong: {np.asarray(y).tolist()}")
    return str(session.get_providers()[0])
