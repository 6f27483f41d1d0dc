"""`gptblock inspect`, of a bundle, a run, a lone .onnx, and of what is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gptblock.bundle.manifest import Check, FileEntry, Manifest, ModelMetadata, TrainingRecord
from gptblock.bundle.store import hash_file
from gptblock.cli.inspect import inspect
from gptblock.config import ModelConfig
from gptblock.errors import BundleError, CorruptError, NotFoundError

MODEL = ModelConfig(vocab_size=3, block_size=8, n_layer=1, n_head=2, n_embd=4)
TOKENIZER: dict[str, object] = {"type": "char", "vocab": "a\n☃"}
CHECKS = (Check("logits", 48, 5e-7, 1e-5), Check("causality", 64, 0.0, 0.0))
CONTENT = {
    "model.onnx": b"graph",
    "golden.safetensors": b"golden",
    "README.md": "# A card\nof é ☃\n".encode(),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose bundle is whole."""
    bundle = tmp_path / "dir é x" / "bundle"
    bundle.mkdir(parents=True)
    files = {}
    for name, content in CONTENT.items():
        (bundle / name).write_bytes(content)
        is_model = name == "model.onnx"
        files[name] = FileEntry(
            len(content), hash_file(bundle / name), "fp32" if is_model else None, CHECKS if is_model else ()
        )
    manifest = Manifest(
        model=MODEL,
        tokenizer=TOKENIZER,
        training=TrainingRecord("my\x1b[2J text.txt", "0" * 64, 20, 1.25, 1.5, "gptblock train", {"seed": 1}),
        files=files,
        versions={"gptblock": "0.1.0", "torch": "2.13.0"},
        created="2026-11-30T12:00:00+00:00",
    )
    (bundle / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return bundle.parent


def call(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(inspect)
    return CliRunner().invoke(app, list(map(str, arguments)))


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.strip()]


@pytest.mark.parametrize("inside", ["", "bundle", "bundle/"])
def test_a_bundle_is_shown(run: Path, inside: str) -> None:
    result = call(f"{run}/{inside}")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines()[:9])
    assert {name: value.strip() for name, value in lines.items()} == {
        "bundle": str(run / "bundle"),
        "created": "2026-11-30T12:00:00+00:00",
        "model": "vocab_size 3, block_size 8, n_layer 1, n_head 2, n_embd 4, dropout 0.0, norm layernorm, "
        "norm_placement pre, norm_eps 1e-05, feedforward relu, ff_ratio 0.0, positions learned, "
        "qk_norm False, token_shift 0, bias lecture, tie_weights False, init gpt2",
        "tokenizer": "char, 3 symbols",
        "needs": "onnxruntime 1.28 or newer",
        "training": "my\\x1b[2J text.txt, 20 steps, loss 1.2500, validation loss 1.5000",
        "command": "gptblock train",
        "made with": "gptblock 0.1.0, torch 2.13.0",
        "model card": f"{run / 'bundle' / 'README.md'} (--card shows it)",
    }
    table = rows(result.stdout)
    assert [
        "model.onnx",
        "5",
        "bytes",
        hash_file(run / "bundle" / "model.onnx")[:8],
        "holds",
        "fp32",
        "2",
        "of",
        "2",
    ] in table
    assert [
        "golden.safetensors",
        "6",
        "bytes",
        hash_file(run / "bundle" / "golden.safetensors")[:8],
        "holds",
    ] in table
    assert ["logits", "48", "5e-07", "1e-05", "holds"] in table
    assert ["causality", "64", "0", "0", "holds"] in table


def test_the_card(run: Path) -> None:
    assert "# A card" not in call(run).stdout
    assert call(run, "--card").stdout.endswith("# A card\nof é ☃\n")
    assert json.loads(call(run, "--card", "--json").stdout)["card"] == "# A card\nof é ☃\n"


def test_one_json_object(run: Path) -> None:
    result = call(run, "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert {key: values[key] for key in ("path", "kind", "problems")} == {
        "path": str(run / "bundle"), "kind": "bundle", "problems": {},
    }  # fmt: skip
    assert values["model"] == MODEL.to_dict()
    assert values["tokenizer"] == TOKENIZER
    assert values["training"]["val_loss"] == 1.5
    assert values["files"]["model.onnx"] == {
        "size": 5,
        "sha256": hash_file(run / "bundle" / "model.onnx"),
        "precision": "fp32",
        "checks": [
            {"name": "logits", "cases": 48, "worst": 5e-7, "allowed": 1e-5, "ok": True},
            {"name": "causality", "cases": 64, "worst": 0.0, "allowed": 0.0, "ok": True},
        ],
        "cost": None,
        "weights": None,
        "problem": None,
    }
    assert "card" not in values


def break_it(bundle: Path) -> None:
    (bundle / "model.onnx").write_bytes(b"grapH")
    (bundle / "README.md").unlink()
    (bundle / "[red]x").touch()


def test_what_is_broken_is_shown_and_ends_in_exit_3(run: Path) -> None:
    break_it(run / "bundle")
    result = call(run)
    table = rows(result.stdout)
    assert [row[0] for row in table if "BROKEN" in row] == ["model.onnx", "README.md"]
    assert ["[red]x", "not", "listed"] in table
    assert ["logits", "48", "5e-07", "1e-05", "holds"] in table
    assert ["model", "card", "none"] in table
    assert isinstance(result.exception, CorruptError)
    assert result.exception.exit_code == 3
    message = str(result.exception)
    assert "model.onnx: SHA-256 is " in message
    assert "README.md: missing; [red]x: not in the manifest. Copy it again" in message


def test_what_is_broken_is_in_the_json_too(run: Path) -> None:
    break_it(run / "bundle")
    result = call(run, "--json")
    assert isinstance(result.exception, CorruptError)
    values = json.loads(result.stdout)
    assert list(values["problems"]) == ["model.onnx", "README.md", "[red]x"]
    assert values["files"]["README.md"]["problem"] == "missing"
    assert values["files"]["golden.safetensors"]["problem"] is None


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_card_that_is_not_there(run: Path, arguments: list[str]) -> None:
    (run / "bundle" / "README.md").unlink()
    result = call(run, "--card", *arguments)
    assert isinstance(result.exception, NotFoundError)
    assert "has no readable model card" in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_manifest_cut_short(run: Path, arguments: list[str]) -> None:
    path = run / "bundle" / "manifest.json"
    path.write_text(path.read_text()[:200])
    result = call(run, *arguments)
    assert isinstance(result.exception, CorruptError)
    assert "cannot be read as JSON" in str(result.exception)
    assert result.stdout == ""


def test_nothing_there(tmp_path: Path) -> None:
    result = call(tmp_path / "absent")
    assert isinstance(result.exception, BundleError)
    assert result.exception.exit_code == 3


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """An .onnx with gptblock's metadata that returns what it gets."""
    onnx = pytest.importorskip("onnx")
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", value[:1], value[1:]),
        ir_version=10,
        opset_imports=[onnx.helper.make_opsetid("", 20)],
    )
    onnx.helper.set_model_props(model, ModelMetadata(MODEL, TOKENIZER, "int8").to_metadata())
    path = tmp_path / "dir é x" / "lone.onnx"
    path.parent.mkdir()
    path.write_bytes(model.SerializeToString())
    return path


def test_a_lone_graph(graph: Path) -> None:
    result = call(graph)
    assert result.exit_code == 0, result.exception
    assert [line.split("  ", 1)[0] for line in result.stdout.splitlines()] == [
        "file", "size", "sha256", "precision", "model", "tokenizer", "needs", "not in it",
    ]  # fmt: skip
    assert ["precision", "int8"] in rows(result.stdout)
    assert ["sha256", hash_file(graph)] in rows(result.stdout)


def test_a_lone_graph_as_json(graph: Path) -> None:
    assert json.loads(call(graph, "--json").stdout) == {
        "path": str(graph),
        "kind": "file",
        "size": graph.stat().st_size,
        "sha256": hash_file(graph),
        "model": MODEL.to_dict(),
        "tokenizer": TOKENIZER,
        "precision": "int8",
        "minimum_onnxruntime": "1.28",
    }


def test_a_lone_graph_has_no_card(graph: Path) -> None:
    result = call(graph, "--card")
    assert isinstance(result.exception, NotFoundError)
    assert "has no model card: a bundle's folder has one" in str(result.exception)


@pytest.mark.parametrize(
    ("tokenizer", "line", "needs"),
    [
        ({"type": "byte"}, "byte, 3 symbols", "onnxruntime 1.28 or newer"),
        (
            {"type": "subword", "json": {"model": {"type": "BPE"}}},
            "subword (BPE), 3 tokens",
            "onnxruntime 1.28 or newer, tokenizers (pip install 'gptblock[bpe]')",
        ),
    ],
)
def test_the_tokenizer_is_named(run: Path, tokenizer: dict[str, object], line: str, needs: str) -> None:
    path = run / "bundle" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer": tokenizer}))
    lines = dict(line.split("  ", 1) for line in call(run).stdout.splitlines()[:9])
    assert (lines["tokenizer"].strip(), lines["needs"].strip()) == (line, needs)
