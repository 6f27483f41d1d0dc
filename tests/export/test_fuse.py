"""The graph for the CPU provider: what is in it, where its weights are, and for whom there is none."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import pytest

from gptblock.export.build import export_model
from gptblock.export.fuse import can_fuse
from gptblock.export.serialize import read_outline
from gptblock.runtime.model import load


def operators(path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def followers(path, kind: str) -> set[str]:
    """What adds a bias of its own to the output of a `kind`."""
    graph = onnx.load(path, load_external_data=False).graph
    outputs = {node.output[0] for node in graph.node if node.op_type == kind}
    weights = {tensor.name for tensor in graph.initializer}
    return {node.op_type for node in graph.node if set(node.input) & outputs and set(node.input) & weights}


def test_a_bundle_has_it_beside_the_standard_graph(tiny_bundle):
    standard, fused = (operators(tiny_bundle / name) for name in ("model.onnx", "model.cpu.onnx"))
    assert fused["GroupQueryAttention"] == standard["Attention"] == 2
    assert standard - fused == Counter(Attention=2, TensorScatter=4, Split=2)
    files = json.loads((tiny_bundle / "manifest.json").read_text())["files"]
    assert {name: entry["weights"] for name, entry in files.items() if entry["weights"]} == {
        "model.cpu.onnx": "model.onnx"
    }
    assert files["model.cpu.onnx"]["precision"] == "fp32"
    assert len(files["model.cpu.onnx"]["checks"]) == 6


def test_its_weights_are_those_of_the_standard_graph(tiny_bundle):
    outline = onnx.load(tiny_bundle / "model.cpu.onnx", load_external_data=False)
    large = [tensor for tensor in outline.graph.initializer if tensor.external_data]
    assert {entry.value for tensor in large for entry in tensor.external_data if entry.key == "location"} == {
        "model.onnx"
    }
    assert all(len(tensor.raw_data) <= 1024 for tensor in outline.graph.initializer)
    expected, got = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
        for path in (tiny_bundle / "model.onnx", tiny_bundle / "model.cpu.onnx")
    )
    assert expected.keys() <= got.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(got[name], weight)


def test_an_outline_keeps_all_but_the_bytes(tiny_bundle):
    whole, outline = onnx.load(tiny_bundle / "model.onnx"), read_outline(tiny_bundle / "model.onnx")
    for model in (whole, outline):
        del model.graph.initializer[:]
    assert outline == whole


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "rope", "qk_norm": True},  # queries and keys apart from the values
        {"token_shift": 2},  # a third cache
        {"n_layer": 1, "norm_placement": "post", "norm": "rmsnorm", "bias": "none"},
    ],
)
def test_variants_in_every_precision_that_has_one(changes, make_model, tiny_tokenizer, tmp_path):
    """Exporting proves each file, so that it is written shows that it is the model."""
    bundle = tmp_path / "bundle"
    manifest = export_model(
        make_model(**changes), tiny_tokenizer, bundle, ["onnx"], ["fp32", "fp16", "int8", "int4"]
    )
    assert "model.fp16.cpu.onnx" not in manifest.files
    for precision in ("fp32", "int8", "int4"):
        name = "model.cpu.onnx" if precision == "fp32" else f"model.{precision}.cpu.onnx"
        assert operators(bundle / name)["GroupQueryAttention"] == changes.get("n_layer", 2)
        assert len(manifest.files[name].checks) == 6
        if precision != "fp32":
            assert followers(bundle / name, "MatMulNBits") == set()
        assert load(bundle, precision=precision, provider="cpu", threads=1).decoder.is_fused


@pytest.mark.parametrize(
    ("n_embd", "precision", "fuses"), [(32, "fp32", True), (32, "fp16", False), (28, "fp32", False)]
)
def test_odd_heads_and_half_precision_have_none(n_embd, precision, fuses, make_model):
    assert can_fuse(make_model(n_embd=n_embd, n_layer=1).config, precision) is fuses


def test_a_model_of_odd_heads_runs_by_its_standard_graph(make_model, tiny_tokenizer, tmp_path):
    manifest = export_model(make_model(n_embd=28, n_layer=1), tiny_tokenizer, tmp_path / "bundle", ["onnx"])
    assert "model.cpu.onnx" not in manifest.files
    model = load(tmp_path / "bundle", provider="cpu", threads=1)
    assert not model.decoder.is_fused
    assert len(model.generate("A", max_new_tokens=5).text) == 5
