"""The quantised graph for batches: the same weights, dequantised once when it is opened."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import onnxruntime
import pytest

from gptblock.export.build import export_model
from gptblock.export.quantize import _restored
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.session import open_session


def weights(graph) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


@pytest.fixture(scope="module", params=[(64, 4), (40, 5)], ids=["whole blocks", "padded columns"])
def bundle(request, make_model, tiny_tokenizer, tmp_path_factory):
    n_embd, n_head = request.param
    folder = tmp_path_factory.mktemp("unpack") / "bundle"
    model = make_model(n_embd=n_embd, n_head=n_head, n_layer=1)
    manifest = export_model(model, tiny_tokenizer, folder, ["onnx"], ["int8", "int4"])
    for precision in ("int8", "int4"):
        entry = manifest.files[f"model.{precision}.batch.onnx"]
        assert (entry.weights, entry.precision) == (f"model.{precision}.onnx", precision)
        assert len(entry.checks) == 6
    return folder


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_it_multiplies_with_the_weights_that_are_stored_in_float32(precision, bundle, tmp_path):
    folder = tmp_path / "bundle"  # what ONNX Runtime writes refers to the weights, too
    shutil.copytree(bundle, folder)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.optimized_model_filepath = str(folder / "opened.onnx")
    batch = folder / f"model.{precision}.batch.onnx"
    onnxruntime.InferenceSession(str(batch), options, providers=["CPUExecutionProvider"])
    opened = onnx.load(folder / "opened.onnx").graph
    assert not {"DequantizeLinear", "MatMulNBits"} & {node.op_type for node in opened.node}
    packed = onnx.load(bundle / f"model.{precision}.cpu.onnx").graph
    products = [node for node in packed.node if node.op_type == "MatMulNBits"]
    assert len(products) == 5
    got, stored = weights(opened), weights(packed)
    for node in products:
        np.testing.assert_array_equal(got[f"{node.output[0]}.weight"], _restored(node, stored)[0])


def test_its_weights_are_in_the_file_of_the_standard_graph(bundle):
    for precision in ("int8", "int4"):
        graph = onnx.load(bundle / f"model.{precision}.batch.onnx", load_external_data=False).graph
        places = {entry.value for tensor in graph.initializer for entry in tensor.external_data}
        assert f"model.{precision}.onnx" in places
        assert all(len(tensor.raw_data) <= 1024 for tensor in graph.initializer)


def test_it_is_nearer_to_fp32_than_the_graph_whose_activations_are_rounded(bundle):
    ids = np.random.default_rng(0).integers(0, 65, size=(3, 16))
    fp32, packed, batch = (
        Decoder(open_session(bundle / name, provider="cpu", threads=1)).logits(ids)
        for name in ("model.onnx", "model.int8.cpu.onnx", "model.int8.batch.onnx")
    )
    assert 0 < np.abs(batch - fp32).max() < 0.8 * np.abs(packed - fp32).max()
