"""The ONNX file: its contract, what is in it, and an outside oracle for what it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
import torch

from gptblock.bundle.manifest import ModelMetadata
from gptblock.export.onnx import export_onnx
from gptblock.export.parity import make_golden, prove_onnx


@pytest.fixture(scope="module")
def graph(tiny_bundle: Path) -> onnx.ModelProto:
    return onnx.load(tiny_bundle / "model.onnx")


def shapes(arguments) -> dict[str, list[str | int]]:
    return {a.name: [d.dim_param or d.dim_value for d in a.type.tensor_type.shape.dim] for a in arguments}


def test_inputs_and_outputs_are_the_contract(graph):
    pairs = [f"{i}.{part}" for i in range(2) for part in ("key", "value")]
    cache = ["batch", "capacity", 32]
    assert list(shapes(graph.graph.input).items()) == [
        ("input_ids", ["batch", "time"]),
        ("past_length", ["batch"]),
        ("logits_positions", ["batch", "kept"]),
        *((f"past_key_values.{pair}", cache) for pair in pairs),
    ]
    assert list(shapes(graph.graph.output).items()) == [
        ("logits", ["batch", "kept", 65]),
        *((f"present.{pair}", cache) for pair in pairs),
    ]


def test_standard_operators_of_opset_24_alone(graph):
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 24)]
    assert graph.ir_version == 10
    assert not graph.functions
    assert {node.domain for node in graph.graph.node} == {""}
    onnx.checker.check_model(graph, full_check=True)


def test_no_dropout_and_nothing_random(graph):
    operators = {node.op_type for node in graph.graph.node}
    assert {"Attention", "TensorScatter"} <= operators
    assert not {
        op for op in operators if op == "Dropout" or "Random" in op or op in ("Multinomial", "Bernoulli")
    }


def test_metadata_says_what_the_model_is(graph, tiny_model, tiny_tokenizer):
    metadata = ModelMetadata.from_metadata({prop.key: prop.value for prop in graph.metadata_props})
    assert metadata.model == tiny_model.config
    assert metadata.tokenizer == tiny_tokenizer.to_dict()
    assert metadata.precision == "fp32"


def test_weights_are_stored_once(tiny_model, tiny_bundle):
    parameters = sum(parameter.nbytes for parameter in tiny_model.parameters())
    assert parameters < (tiny_bundle / "model.onnx").stat().st_size < parameters + 30_000


def test_no_path_of_the_machine_that_exported_is_in_the_file(tiny_bundle):
    data = (tiny_bundle / "model.onnx").read_bytes()
    assert b"stack_trace" not in data
    assert b".py" not in data


def test_onnx_reference_evaluator_agrees_with_pytorch(graph, tiny_model):
    """An implementation of the operators that is neither ONNX Runtime's nor PyTorch's."""
    ids = np.random.default_rng(0).integers(0, 65, size=(2, 16))
    feeds = {
        name: np.zeros((2, 16, 32), np.float32) for name in shapes(graph.graph.input) if "past_key" in name
    }
    positions = np.tile(np.arange(7), (2, 1))
    feeds |= {"input_ids": ids[:, :7], "past_length": np.zeros(2, np.int64), "logits_positions": positions}
    logits = onnx.reference.ReferenceEvaluator(graph).run(["logits"], feeds)[0]
    np.testing.assert_allclose(logits, tiny_model(torch.from_numpy(ids[:, :7])).detach(), atol=2e-6)


def test_exporting_again_gives_the_same_bytes(tiny_model, export_to, tmp_path):
    path = tmp_path / "again.onnx"
    first = export_to(tiny_model, path).read_bytes()
    assert export_to(tiny_model, path).read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["again.onnx"]


def test_a_model_in_training_mode_is_exported_in_eval_mode_and_stays_as_it_was(
    make_model, export_to, tmp_path
):
    model = make_model(n_layer=1).train()
    path = export_to(model, tmp_path / "model.onnx")
    assert all(module.training for module in model.modules())
    assert all(check.ok for check in prove_onnx(path, make_golden(model)))


def test_large_weights_go_to_a_second_file(make_model, tmp_path):
    model = make_model(n_layer=1)
    metadata = ModelMetadata(model.config, {"type": "char", "vocab": "".join(map(chr, range(65)))}, "fp32")
    path = tmp_path / "model.onnx"
    written = export_onnx(model, path, metadata, largest_single_file=1000)
    assert written == [path, tmp_path / "model.onnx.data"]
    assert sorted(tmp_path.iterdir()) == written
    assert path.stat().st_size < 40_000 < written[1].stat().st_size
    assert all(check.ok for check in prove_onnx(path, make_golden(model)))


def test_input_ids_is_input_0_and_ids_of_length_1_run(tiny_bundle, tiny_model):
    session = onnxruntime.InferenceSession(tiny_bundle / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].name == "input_ids"
    ids = np.array([[7]])
    feeds = {i.name: np.zeros((1, 1, 32), np.float32) for i in session.get_inputs() if "past_key" in i.name}
    feeds |= {
        "input_ids": ids,
        "past_length": np.zeros(1, np.int64),
        "logits_positions": np.zeros((1, 1), np.int64),
    }
    logits = session.run(["logits"], feeds)[0]
    with torch.no_grad():
        expected = tiny_model(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
