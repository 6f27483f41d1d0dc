"""The weights are stored as near as their bits allow, and nothing else is rounded in the file."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest

from gptblock.bundle.manifest import ModelMetadata
from gptblock.export.parity import make_golden, prove_onnx
from gptblock.export.quantize import _SCHEMES, check_rounding, quantize

BITS = {"int8": 8, "int4": 4}


@pytest.mark.parametrize(
    ("precision", "rows", "block"),
    [
        ("int8", 1, None),
        ("int8", 5, None),
        ("int8", 6, 16),
        ("int8", 21, 32),
        ("int8", 128, 128),
        ("int8", 129, 32),
        ("int8", 192, 64),
        ("int8", 384, 128),
        ("int8", 768, 128),
        ("int4", 3, None),
        ("int4", 4, 16),
        ("int4", 32, 32),
        ("int4", 33, 16),
        ("int4", 384, 32),
    ],
)
def test_a_column_is_cut_into_the_blocks_that_take_least(precision, rows, block):
    assert _SCHEMES[precision].block(rows) == block


def quantized(model, precision, export_to, folder) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The graph before and after."""
    fp32 = export_to(model, folder / "model.onnx")
    return onnx.load(fp32), onnx.load(export_to(model, folder / f"{precision}.onnx", precision, fp32))


@pytest.mark.parametrize("tied", [False, True])
def test_every_matrix_is_stored_to_the_nearest_step(tied, make_model, export_to, tmp_path):
    model = make_model(n_layer=1, n_head=3, n_embd=21, tie_weights=tied)
    for precision, bits in BITS.items():
        before, after = quantized(model, precision, export_to, tmp_path)
        nodes = [node for node in after.graph.node if node.op_type == "MatMulNBits"]
        assert [{a.name: a.i for a in node.attribute}["bits"] for node in nodes] == [bits] * 5
        graph, rounding = check_rounding(tmp_path / "model.onnx", tmp_path / f"{precision}.onnx")
        assert (graph.cases, graph.worst) == (len(after.graph.node), 0)
        assert rounding.cases == 21 * (63 + 21 + 84 + 84 + 65)
        assert 0.4 < rounding.worst <= 1.001
        kinds = {node.op_type for node in after.graph.node}
        assert kinds - {node.op_type for node in before.graph.node} == {"MatMulNBits"}
        assert not kinds & {"MatMul", "Transpose"}
        assert {d.domain for d in after.opset_import} == {"", "com.microsoft"}


def test_a_matrix_too_small_to_gain_stays_as_it_is(make_model, export_to, tmp_path):
    model = make_model(n_layer=1, n_head=1, n_embd=3)
    for precision in BITS:
        _, after = quantized(model, precision, export_to, tmp_path)
        kinds = [node.op_type for node in after.graph.node if node.op_type.startswith("MatMul")]
        assert kinds == ["MatMul"] * 3 + ["MatMulNBits"] + ["MatMul"]  # only the way back from 12 features


def test_the_file_says_what_it_is_and_is_smaller(tiny_bundle, tiny_model, tiny_tokenizer, tmp_path):
    source = tiny_bundle / "model.onnx"
    sizes = [source.stat().st_size]
    for precision in BITS:
        path = tmp_path / f"{precision}.onnx"
        metadata = ModelMetadata(tiny_model.config, tiny_tokenizer.to_dict(), precision)
        quantize(source, path, metadata)
        sizes.append(path.stat().st_size)
        written = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
        assert ModelMetadata.from_metadata(written) == metadata
        assert all(check.ok for check in prove_onnx(path, make_golden(tiny_model)))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < 0.5 * sizes[0]


def test_importing_the_quantizer_leaves_logging_alone():
    code = (
        "import logging\n"
        "from gptblock.export.quantize import _silent_import\n"
        "with _silent_import():\n"
        "    import onnxruntime.quantization.matmul_nbits_quantizer\n"
        "assert (logging.root.handlers, logging.root.level) == ([], logging.WARNING), logging.root.handlers\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
