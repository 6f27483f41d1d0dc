"""`gptblock export`: from a run to a bundle that generates, with the proof on stdout, or nothing at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gptblock.bundle.manifest import Check
from gptblock.bundle.store import check_files, read_manifest
from gptblock.cli.app import app
from gptblock.config import TrainConfig
from gptblock.runtime.model import load
from gptblock.training import train


def call(*arguments: str | Path):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of three steps; the module's tests export it, and one another's bundle away."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("to be or not to be\n" * 20)
    sizes = {"block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 8, "batch_size": 4}
    steps = {"max_iters": 3, "eval_iters": 1, "device": "cpu"}
    train(TrainConfig(data=str(folder / "text.txt"), **sizes, **steps), folder / "my run")
    return folder / "my run"


@pytest.fixture
def exported(monkeypatch) -> list[tuple]:
    """What the command asks of the exporter, which does nothing here but hand out a manifest."""
    calls = []

    def export(run, formats, precisions, *, checkpoint, data, on_proof, on_note):
        calls.append((run, list(formats), checkpoint, *([precisions, data] if precisions else [])))
        on_note("a note")
        on_proof("model.onnx", [Check("logits", 3, 1e-7, 1e-5)])
        return SimpleNamespace(files={})

    monkeypatch.setattr("gptblock.export.build.export", export)
    return calls


ODD = "my [bold] :smile: run"
BOTH = ["onnx", "torchscript"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (Path("artifacts/model"), BOTH, "best")),
        ([ODD], (Path(ODD), BOTH, "best")),
        ([ODD, "--format", "onnx"], (Path(ODD), ["onnx"], "best")),
        ([ODD, "--format", "torchscript"], (Path(ODD), ["torchscript"], "best")),
        ([ODD, "--format", "torchscript", "--format", "onnx"], (Path(ODD), BOTH, "best")),
        ([ODD, "--checkpoint", "last"], (Path(ODD), BOTH, "last")),
        (
            [ODD, "--precision", "int4", "--precision", "int8", "--data", "a b.txt"],
            (Path(ODD), BOTH, "best", ["int8", "int4"], "a b.txt"),
        ),
    ],
)
def test_what_is_asked_for(arguments, expected, exported):
    result = call(*arguments)
    assert result.exit_code == 0
    assert exported == [expected]
    assert result.stdout.split()[:1] == ["model.onnx"]
    assert result.stderr.startswith("a note\n")
    assert f"next: gptblock generate {expected[0]}" in result.stderr


def test_quiet_leaves_the_proof(exported):
    result = call("r", "--quiet")
    assert "logits" in result.stdout
    assert result.stderr == ""
    assert len(exported) == 1


def test_a_run_becomes_a_bundle_that_generates(run):
    result = call(run, "--format", "onnx")
    assert result.exit_code == 0
    assert result.stdout.count("holds") == 6
    assert "FAILS" not in result.stdout
    assert f"wrote {run / 'bundle'}: " in result.stderr
    manifest = read_manifest(run / "bundle")
    assert sorted(manifest.files) == ["README.md", "golden.safetensors", "model.onnx"]
    assert check_files(run / "bundle", manifest) == []
    assert manifest.training.steps == json.loads((run / "checkpoints/best/state.json").read_text())["step"]
    assert len(load(run, provider="cpu").generate("to be", max_new_tokens=20, seed=1).text) == 20


def test_what_a_lower_precision_costs_is_told(run):
    result = call(run, "--format", "onnx", "--precision", "int8")
    assert result.exit_code == 0
    cost = read_manifest(run / "bundle").files["model.int8.onnx"].cost
    assert (cost.text, cost.tokens) == ("text.txt, validation part", 32)
    assert f"model.int8.onnx: {cost}\n" in result.stdout
    shown = CliRunner().invoke(app, ["inspect", str(run)])
    assert f"model.int8.onnx: {cost}\n" in shown.stdout
    assert "| model.int8.onnx | int8 |" in CliRunner().invoke(app, ["inspect", str(run), "--card"]).stdout
    other = CliRunner().invoke(app, ["verify", str(run), "--precision", "int4"])
    assert other.exit_code == 3
    assert "it has fp32, int8" in other.stderr
    assert "gptblock export RUN --precision int4 writes it" in other.stderr


def test_a_failed_proof_exits_5_and_leaves_the_old_bundle(run, monkeypatch):
    old = run / "bundle" / "old"
    old.parent.mkdir(exist_ok=True)
    old.write_text("as it was")
    monkeypatch.setattr(
        "gptblock.export.build.export_onnx", lambda _, path, __: path.write_bytes(b"a wrong graph")
    )
    monkeypatch.setattr(
        "gptblock.export.build.prove_onnx", lambda *_, **__: [Check("logits", 3, float("nan"), 1e-5)]
    )
    result = call(run)
    assert result.exit_code == 5
    assert "FAILS" in result.stdout
    assert "model.onnx does not reproduce the model (logits), so no bundle was written" in result.stderr
    assert old.read_text() == "as it was"
    assert sorted(path.name for path in run.iterdir() if "bundle" in path.name) == ["bundle"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 3, "gptblock train"),
        (["."], 3, "gptblock train"),
        (["nowhere", "--format", "gguf"], 2, "gguf"),
        (["nowhere", "--checkpoint", "first"], 2, "first"),
        (["nowhere", "--precision", "int3"], 2, "int3"),
    ],
)
def test_what_is_refused(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript"])
def test_without_the_training_stack_it_names_the_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    result = call("nowhere")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == (
        f"error: gptblock export needs {package}, which is not installed: pip install 'gptblock[train]'\n"
    )
