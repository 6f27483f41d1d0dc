"""`gptblock convert`: from another program's file to a bundle that generates, with proof, or nothing."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gptblock.bundle.manifest import Check
from gptblock.cli.app import app
from gptblock.config import ModelConfig
from gptblock.lecture import GPT
from gptblock.runtime.model import load

VOCAB = "\nabcdefg "


def call(*arguments: str | Path):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of the lecture's in the working folder, with the text of its characters."""
    monkeypatch.chdir(tmp_path)
    Path("chars.txt").write_text(VOCAB)
    torch.manual_seed(1)
    model = GPT(ModelConfig(vocab_size=9, block_size=8, n_layer=1, n_head=2, n_embd=8, init="torch"))
    torch.save(model.state_dict(), "model.pt")
    return Path("model.pt")


ARGUMENTS = ("--from", "lecture", "--vocab", "chars.txt", "--out", "my run")


def test_a_checkpoint_becomes_a_bundle_that_generates(checkpoint):
    Path("text.txt").write_text("abc def gag " * 50)
    result = call(
        "convert", checkpoint, *ARGUMENTS, "--scale", "n_embd", "--data", "text.txt", "--format", "onnx"
    )
    assert result.exit_code == 0
    assert result.stdout.count("holds") == 6
    assert "FAILS" not in result.stdout
    news = result.stderr.splitlines()
    parameters = sum(p.numel() for p in GPT(ModelConfig(9, 8, 1, 2, 8)).parameters())
    assert news[0] == (
        f"model.pt: {parameters:,} parameters, 1 layers, 2 heads, width 8, context 8, vocabulary 9"
    )
    assert news[1].startswith("scores: scaled by n_embd, as --scale says; the loss is ")
    assert news[2].startswith("loss on text.txt: ")
    assert news[3:] == [
        "exporting, and proving every file against the model",
        "a greedy sample:",
        "wrote my run and its bundle",
        "next: gptblock generate 'my run'",
    ]
    greedy = load(Path("my run"), provider="cpu").generate("\n", max_new_tokens=60, temperature=0.0).text
    assert result.stdout.endswith(greedy.lstrip("\n") + "\n")
    shown = json.loads(call("inspect", "my run", "--json").stdout)
    assert shown["source"]["command"] == (
        "gptblock convert model.pt --from lecture --vocab chars.txt --scale n_embd --data text.txt"
    )
    facts = call("inspect", "my run").stdout
    source = shown["source"]
    assert f"lecture, model.pt, sha256 {source['sha256']}, loss {source['loss']:.4f} on text.txt" in facts
    assert "nats a token on text.txt" in Path("my run/bundle/README.md").read_text()
    for refused in (["export", "my run", "--checkpoint", "last"], ["train", "--resume", "--out", "my run"]):
        result = call(*refused)
        assert result.exit_code == 3
        assert "the run in my run was converted from another program's checkpoint" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give --scale head_size or --scale n_embd"),
        (["--scale", "width"], 2, "width"),
        (["--scale", "n_embd", "--block-size", "9"], 2, "block_size must be at most 8"),
        (["--scale", "n_embd", "--tokenizer", "t.json"], 2, "--tokenizer is for --from nanogpt and gpt2"),
        (["--scale", "n_embd", "--data", "nowhere"], 2, "'nowhere' is neither a file"),
        (["--scale", "n_embd", "--vocab", "model.pt"], 2, "cannot be read as UTF-8"),
        (["--from", "nanogpt", "--vocab", "chars.txt"], 3, "no checkpoint of nanoGPT"),
        (["--from", "gpt2"], 2, "--vocab is for"),
        (["--from", "gpt4"], 2, "gpt4"),
    ],
)
def test_what_is_refused(arguments, code, message, checkpoint):
    before = sorted(Path().iterdir())
    result = call("convert", checkpoint, *ARGUMENTS, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert sorted(Path().iterdir()) == before


@pytest.mark.usefixtures("checkpoint")
def test_a_checkpoint_that_is_not_there():
    result = call("convert", "nothing.pt", *ARGUMENTS)
    assert (result.exit_code, result.stderr) == (3, "error: there is no file nothing.pt\n")


def test_a_pickle_that_would_run_something_does_not(checkpoint):
    class Touch:
        def __reduce__(self):
            return Path.touch, (Path("marker"),)

    checkpoint.write_bytes(pickle.dumps(Touch()))
    result = call("convert", checkpoint, *ARGUMENTS)
    assert result.exit_code == 3
    assert "nothing else in it is run" in result.stderr
    assert not Path("marker").exists()


def test_over_a_run_only_with_overwrite(checkpoint, monkeypatch):
    monkeypatch.setattr("gptblock.export.build.export", lambda *_, **__: None)
    arguments = ("convert", checkpoint, *ARGUMENTS, "--scale", "n_embd", "--quiet")
    assert call(*arguments).stderr == ""
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "my run holds a run: --overwrite replaces it" in result.stderr
    assert call(*arguments, "--overwrite").exit_code == 0


def test_a_failed_proof_exits_5_and_leaves_nothing(checkpoint, monkeypatch):
    monkeypatch.setattr(
        "gptblock.export.build.prove_onnx", lambda *_, **__: [Check("logits", 3, float("nan"), 1e-5)]
    )
    before = sorted(Path().iterdir())
    result = call("convert", checkpoint, *ARGUMENTS, "--scale", "head_size", "--format", "onnx")
    assert result.exit_code == 5
    assert "model.onnx does not reproduce the model (logits)" in result.stderr
    assert "wrote" not in result.stderr
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript"])
def test_without_the_training_stack_it_names_the_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    result = call("convert", "nothing.pt", *ARGUMENTS)
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == (
        f"error: gptblock convert needs {package}, which is not installed: pip install 'gptblock[train]'\n"
    )
