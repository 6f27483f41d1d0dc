"""The graph of 8 bits for many tokens at once: the same weights, multiplied as float32."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from gptblock.export.build import export_model
from gptblock.export.quantize import _restored
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.session import _UNPACKED_EACH, _UNPACKED_ONCE, open_session


def weights(graph) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


@pytest.fixture(scope="module", params=[(64, 4), (40, 5)], ids=["whole blocks", "padded columns"])
def bundle(request, make_model, tiny_tokenizer, tmp_path_factory):
    n_embd, n_head = request.param
    folder = tmp_path_factory.mktemp("unpack") / "bundle"
    model = make_model(n_embd=n_embd, n_head=n_head, n_layer=1)
    manifest = export_model(model, tiny_tokenizer, folder, ["onnx"], ["int8"])
    entry = manifest.files["model.int8.batch.onnx"]
    assert (entry.weights, entry.precision) == ("model.int8.onnx", "int8")
    assert len(entry.checks) == 6
    return folder


def as_opened(bundle, folder, entries):
    """The graph that ONNX Runtime makes of the bundle's when it opens it."""
    shutil.copytree(bundle, folder)  # what is written refers to the weights, too
    options = onnxruntime.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    options.optimized_model_filepath = str(folder / "opened.onnx")
    batch = folder / "model.int8.batch.onnx"
    onnxruntime.InferenceSession(str(batch), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "opened.onnx").graph


def test_it_multiplies_with_the_weights_that_are_stored_in_float32(bundle, tmp_path):
    opened = as_opened(bundle, tmp_path / "bundle", _UNPACKED_ONCE)
    assert not {"DequantizeLinear", "MatMulNBits"} & {node.op_type for node in opened.node}
    packed = onnx.load(bundle / "model.int8.cpu.onnx").graph
    products = [node for node in packed.node if node.op_type == "MatMulNBits"]
    assert len(products) == 5
    got, stored = weights(opened), weights(packed)
    for node in products:
        np.testing.assert_array_equal(got[f"{node.output[0]}.weight"], _restored(node, stored)[0])


def test_or_unpacks_them_row_by_row_before_each_product(bundle, tmp_path):
    """ONNX Runtime would make MatMulNBits again of what it recognises."""
    opened = as_opened(bundle, tmp_path / "bundle", _UNPACKED_EACH)
    assert not {"MatMulNBits", "Transpose"} & {node.op_type for node in opened.node}
    unpacking = [node for node in opened.node if node.op_type == "DequantizeLinear"]
    assert len(unpacking) == 5
    got = weights(opened)
    for node in unpacking:
        rows, scales, _ = (got[name] for name in node.input)
        assert rows.dtype == np.uint8
        assert {attribute.name: attribute.i for attribute in node.attribute}["axis"] == 0
        assert rows.shape[1] == scales.shape[1]  # a scale for each column, block after block of rows


def test_each_is_unpacked_just_before_its_product(bundle, tmp_path):
    """Not all at the start: a float32 copy of one is in memory at a time."""
    options = onnxruntime.SessionOptions()
    for key, value in _UNPACKED_EACH.items():
        options.add_session_config_entry(key, value)
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    batch = bundle / "model.int8.batch.onnx"
    session = onnxruntime.InferenceSession(str(batch), options, providers=["CPUExecutionProvider"])
    sizes = {"batch": 1, "time": 4, "kept": 1, "capacity": 4}
    session.run(
        None,
        {
            each.name: np.zeros(
                [sizes.get(size, size) for size in each.shape],
                np.int64 if each.type == "tensor(int64)" else np.float32,
            )
            for each in session.get_inputs()
        },
    )
    events = json.loads(Path(session.end_profiling()).read_text())
    run = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert run.count("DequantizeLinear") == 5
    assert all(after == "MatMul" for before, after in itertools.pairwise(run) if before == "DequantizeLinear")


def test_both_ways_give_the_same_logits(bundle):
    ids = np.random.default_rng(0).integers(0, 65, size=(5, 16))
    session = open_session(bundle / "model.int8.batch.onnx", provider="cpu", threads=1)
    once, each = (Decoder(each).logits(ids) for each in (session, session.for_prompts()))
    np.testing.assert_allclose(each, once, atol=1e-5, rtol=0)


def test_its_weights_are_in_the_file_of_the_standard_graph(bundle):
    graph = onnx.load(bundle / "model.int8.batch.onnx", load_external_data=False).graph
    places = {entry.value for tensor in graph.initializer for entry in tensor.external_data}
    assert "model.int8.onnx" in places
    assert all(len(tensor.raw_data) <= 1024 for tensor in graph.initializer)


def test_it_is_nearer_to_fp32_than_the_graph_whose_activations_are_rounded(bundle):
    ids = np.random.default_rng(0).integers(0, 65, size=(2, 16))
    fp32, packed, batch = (
        Decoder(open_session(bundle / name, provider="cpu", threads=1)).logits(ids)
        for name in ("model.onnx", "model.int8.cpu.onnx", "model.int8.batch.onnx")
    )
    assert 0 < np.abs(batch - fp32).max() < 0.8 * np.abs(packed - fp32).max()
