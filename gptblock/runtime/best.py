"""The largest logits, found on the device that has them: of a large vocabulary, few are sampled from.

What crosses to the host is then some numbers a row in place of one for each token of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gptblock.runtime import protobuf
from gptblock.runtime.protobuf import FLOAT, INT64

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

    from gptblock.runtime.decoder import Ids, Logits

_ANY = [None, None, None]

# Of logits (B, K, V) the k largest and their ids, and the sum of all, which a NaN anywhere makes a NaN.
MODEL = protobuf.model(
    [
        protobuf.node("TopK", ["logits", "k"], ["largest", "ids"]),
        protobuf.node("ReduceSum", ["logits"], ["sum"]),
    ],
    [protobuf.value("logits", FLOAT, _ANY), protobuf.value("k", INT64, [1])],
    [
        protobuf.value("largest", FLOAT, _ANY),
        protobuf.value("ids", INT64, _ANY),
        protobuf.value("sum", FLOAT, [1, 1, 1]),
    ],
    opset=12,
)


def best(session: InferenceSession, logits: OrtValue, count: int) -> tuple[Logits, Ids] | None:
    """The `count` largest of each row's logits (B, K, V), and their token ids, ascending: 2 x (B, K, count).

    Of equal ones the lowest ids. None where not all logits are finite: that is for the sampler to judge.
    """
    binding = session.io_binding()
    binding.bind_ortvalue_input("logits", logits)
    binding.bind_cpu_input("k", np.array([count]))
    for name in ("largest", "ids", "sum"):
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    largest, ids, total = binding.copy_outputs_to_cpu()
    if not np.isfinite(total).all():
        return None
    order = ids.argsort(axis=-1)
    return np.take_along_axis(largest, order, -1), np.take_along_axis(ids, order, -1)
