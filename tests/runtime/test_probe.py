from typing import Any

import numpy as np
import pytest

from gptblock.runtime.probe import MODEL, probe
from gptblock.runtime.wheels import load_onnxruntime


def test_the_model_is_valid_to_the_onnx_package() -> None:
    import onnx

    model = onnx.load_model_from_string(MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]


def test_it_runs_on_the_cpu_and_names_it() -> None:
    assert probe(load_onnxruntime(), ["CPUExecutionProvider"]) == "CPUExecutionProvider"


def test_a_wrong_product_is_an_error(fake_ort: Any) -> None:
    fake = fake_ort()
    module = fake.module()
    module.InferenceSession.run = lambda self, names, feeds: [np.zeros((2, 2), np.float32)]  # noqa: ARG005
    with pytest.raises(RuntimeError, match=r"wrong: \[\[0.0, 0.0\], \[0.0, 0.0\]\]"):
        probe(module, ["CPUExecutionProvider"])
