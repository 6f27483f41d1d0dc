"""The smallest proof that an execution provider works: one matrix product, run and checked."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from gptblock.runtime import protobuf

ProviderList = Sequence[str | tuple[str, dict[str, str]]]


# y = MatMul(x, x), float32 (2, 2)
MODEL = protobuf.model(
    [protobuf.node("MatMul", ["x", "x"], ["y"])],
    [protobuf.value("x", protobuf.FLOAT, [2, 2])],
    [protobuf.value("y", protobuf.FLOAT, [2, 2])],
    opset=13,
)


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
