from __future__ import annotations

import dataclasses
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

from gptblock.cli.app import app
from gptblock.cli.train import train
from gptblock.config import PRESETS, TrainConfig, train_config

TINY = [
    *("--block-size", "8", "--n-layer", "1", "--n-head", "2", "--n-embd", "8"),
    *("--batch-size", "4", "--eval-interval", "5", "--eval-iters", "1"),
]


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be\n" * 20)
    return str(path)


def gptblock(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, args)])


def resolved(run: Path) -> TrainConfig:
    return TrainConfig.from_dict(tomllib.loads((run / "config.toml").read_text()))


def test_every_field_is_a_flag_that_defaults_to_not_given() -> None:
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    parameters = inspect.signature(train).parameters
    others = {"out", "resume", "overwrite", "stop_after", "shard", "preset", "config", "log", "quiet"}
    assert set(parameters) == fields | others
    assert {name for name in fields if parameters[name].default is not None} == set()


def test_preset_then_file_then_flags(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fields.toml"
    file.write_text("n_head = 2\nmax_iters = 2\nbatch_size = 3\n")
    run = tmp_path / "run"
    flags = ["--preset", "part6", "--config", file, "--max-iters", "1", "--eval-iters", "1"]
    assert gptblock(text, *flags, "--out", run, "--device", "cpu").exit_code == 0
    given = {"data": text, "n_head": 2, "batch_size": 3, "max_iters": 1, "eval_iters": 1, "device": "cpu"}
    given |= {"threads": torch.get_num_threads(), "dtype": "fp32", "compile": "off"}
    assert resolved(run) == train_config("part6", overrides=given).resolved()


def test_the_default_preset_is_quick_without_a_gpu(text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert gptblock(text, *TINY, "--max-iters", "1", "--device", "cpu", "--out", run).exit_code == 0
    assert (
        resolved(run).learning_rate
        == train_config("quick").learning_rate
        != PRESETS["lecture"]["learning_rate"]
    )


def test_it_says_where_it_stands_on_stderr_alone(text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = gptblock(text, *TINY, "--max-iters", "7", "--out", run)
    assert result.exit_code == 0
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("training ")
    assert [line.split(":")[0] for line in lines[1:-2]] == ["step 0", "step 5", "step 7"]
    assert lines[-2].startswith(f"{run}: step 7, best validation loss ")
    assert lines[-1] == f"next: gptblock export {run}"


def test_quiet_is_quiet(text: str, tmp_path: Path) -> None:
    result = gptblock(text, *TINY, "--max-iters", "1", "--out", tmp_path / "run", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_stopping_and_resuming_is_straight(text: str, tmp_path: Path) -> None:
    """--resume takes what is not given from the run: no preset comes between."""
    flags = [text, *TINY, "--dropout", "0.2", "--max-iters", "10"]
    assert gptblock(*flags, "--out", tmp_path / "straight").exit_code == 0
    assert gptblock(*flags, "--out", tmp_path / "stopped", "--stop-after", "5").exit_code == 0
    result = gptblock("--resume", "--out", tmp_path / "stopped")
    assert result.exit_code == 0
    assert "going on from step 5 of 10" in result.stderr
    straight, stopped = (
        (tmp_path / name / "checkpoints" / "last" / "optimizer.safetensors").read_bytes()
        for name in ("straight", "stopped")
    )
    assert straight == stopped
    result = gptblock("--resume", "--out", tmp_path / "stopped", "--max-iters", "12", "--n-layer", "1")
    assert result.exit_code == 0
    assert resolved(tmp_path / "stopped").max_iters == 12
    assert resolved(tmp_path / "stopped").lr_decay_iters == 10


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--seed", "-1"], 2, "seed must be >= 0: got -1"),
        (["--n-embd", "30", "--n-head", "4"], 2, "got n_embd = 30 and n_head = 4"),
        (["--n-head", "0"], 2, "n_head must be >= 1: got 0"),
        (["--n-layer", "0"], 2, "n_layer must be >= 1: got 0"),
        (["--dropout", "1.0"], 2, "dropout must be in [0, 1): got 1.0"),
        (["--dropout", "-0.1"], 2, "dropout must be in [0, 1): got -0.1"),
        (["--learning-rate", "nan"], 2, "learning_rate must be a finite number"),
        (["--bpe-vocab-size", "255"], 2, "bpe_vocab_size must be >= 256: got 255"),
        (["--out", "taken", "--resume", "--tokenizer", "byte"], 2, "tokenizer (char in the run, byte given)"),
        (["--preset", "huge"], 2, "there is no preset 'huge'"),
        (["--preset", "huge", "--resume"], 2, "there is no preset 'huge'"),
        (["--config", "none.toml"], 2, "no configuration file none.toml"),
        (["--stop-after", "0"], 2, "stop_after must be >= 1: got 0"),
        (["--out", "taken", "--resume", "--overwrite"], 2, "give one of them"),
        (["--resume", "--out", "nothing"], 3, "there is no run in nothing"),
        (["nowhere.txt"], 2, "'nowhere.txt' is neither a file, nor a folder, nor a named corpus"),
        (["--out", "taken"], 2, "--resume goes on with it, --overwrite replaces it"),
        (["--out", "taken", "--resume", "--n-embd", "16"], 2, "n_embd (8 in the run, 16 given)"),
        (["--out", "taken", "--resume", "--config", "other.toml"], 2, "seed (1337 in the run, 9 given)"),
        (
            ["--learning-rate", "1e30", "--warmup-iters", "0", "--grad-clip", "0"],
            1,
            "with a lower --learning-rate",
        ),
    ],
)
def test_refusals(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.toml").write_text("seed = 9\n")
    if "taken" in args:
        assert gptblock(text, *TINY, "--max-iters", "1", "--out", "taken", "--quiet").exit_code == 0
    data = [] if "--resume" in args or "nowhere.txt" in args else [text]
    tiny = [] if "--resume" in args or {"--n-embd", "--n-head", "--n-layer"} & set(args) else TINY
    result = gptblock(*data, *tiny, *args)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr
    assert not Path("artifacts", "model", "checkpoints", "best").exists() or code == 1


def test_an_unknown_key_of_the_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("n_layers = 3\n")
    result = gptblock(text, "--config", tmp_path / "bad.toml", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "has no field 'n_layers'" in result.stderr


@pytest.mark.parametrize("package", ["torch", "matplotlib", "tomli_w"])
def test_a_missing_package_prints_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = gptblock()
    assert result.exit_code == 4
    assert f"gptblock train needs {package}" in result.stderr
    assert "pip install 'gptblock[train]'" in result.stderr


def test_a_terminal_sees_the_losses_move(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(force_terminal=True, width=120, file=io.StringIO())
    monkeypatch.setattr("gptblock.cli.progress.stderr", lambda: terminal)
    result = gptblock(text, *TINY, "--max-iters", "6", "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert result.stdout == ""
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    for part in ("6/6", r"loss \d\.\d{4}", r"val \d\.\d{4}", r"lr \d\.\d\de-0\d", r"[\d,]+ tokens/s"):
        assert re.search(part, shown), part


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is a large one, read in blocks of 10 bytes."""
    monkeypatch.setattr("gptblock.text.ids.MAPPED_FROM", 1)
    monkeypatch.setattr("gptblock.text.corpus.BLOCK", 10)
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("large")
def test_reading_a_large_text_is_told_of(text: str, tmp_path: Path) -> None:
    result = gptblock(text, *TINY, "--max-iters", "1", "--out", tmp_path / "run")
    assert (result.exit_code, result.stdout) == (0, "")
    lines = result.stderr.splitlines()
    assert lines[0] == f"reading {text} (380 bytes)"
    assert lines[1:4] == [f"reading {text}: {share}%" for share in (26, 50, 76)]
    assert lines[4] == f"encoding {text} (380 bytes)"
    again = gptblock(text, *TINY, "--max-iters", "1", "--out", tmp_path / "run", "--overwrite")
    assert "encoding" not in again.stderr
    flags = ["--max-iters", "1", "--out", tmp_path / "run", "--overwrite", "--quiet"]
    assert gptblock(text, *TINY, *flags).stderr == ""


@pytest.mark.usefixtures("large")
def test_a_terminal_sees_a_large_text_read(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(force_terminal=True, width=120, file=io.StringIO())
    monkeypatch.setattr("gptblock.cli.progress.stderr", lambda: terminal)
    flags = ["--tokenizer", "bpe", "--bpe-vocab-size", "260", "--max-iters", "1", "--out", tmp_path / "run"]
    result = gptblock(text, *TINY, *flags)
    assert result.exit_code == 0, result.output
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    for stage in ("reading", "learning tokens from", "encoding"):
        assert re.search(rf"{stage}.*100%", shown), stage
    assert "1/1" in shown


@pytest.mark.usefixtures("large")
def test_a_cache_that_cannot_be_written_ends_in_one_message(text: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    result = gptblock(text, *TINY, "--max-iters", "1", "--out", tmp_path / "run", "--quiet")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "set GPTBLOCK_CACHE to a folder that may be written" in result.stderr
    assert not (tmp_path / "run").exists()


def test_samples_are_shown_and_steer_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\x1b\n" * 200)
    flags = ["--sample-interval", "3", "--max-iters", "6", "--out", tmp_path / "run"]
    result = gptblock(tmp_path / "text.txt", *TINY, *flags)
    assert (result.exit_code, result.stdout) == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]
    for line in lines:
        shown = line["text"].replace("\x1b", "\\x1b")
        assert f"step {line['step']} writes:\n{shown}\n\n" in result.stderr
    assert "\x1b" not in result.stderr
    assert gptblock(tmp_path / "text.txt", *TINY, *flags, "--quiet", "--overwrite").stderr == ""


def test_tensorboard_is_an_extra(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = gptblock(text, *TINY, "--log", "tensorboard", "--out", tmp_path / "run")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == (
        "error: --log tensorboard needs tensorboard, which is not installed: "
        "pip install 'gptblock[tensorboard]'\n"
    )
    assert not (tmp_path / "run").exists()
    assert gptblock(text, "--log", "wandb", "--out", tmp_path / "run").exit_code == 2


def test_tensorboard_hears_a_quiet_run(text: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    flags = ["--max-iters", "3", "--out", tmp_path / "run", "--log", "tensorboard", "--quiet"]
    result = gptblock(text, *TINY, *flags)
    assert (result.exit_code, result.stderr) == (0, "")
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"loss/validation" in file.read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_ctrl_c_saves_exits_130_and_resumes(text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "gptblock", "train"]
    process = subprocess.Popen(
        [*command, text, *TINY, "--max-iters", "100000", "--out", str(run)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process, process.stderr:
        while not process.stderr.readline().startswith("step 5:"):
            pass
        os.kill(process.pid, signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "gptblock train --resume --out" in rest
    assert "Traceback" not in rest
    step = json.loads((run / "checkpoints" / "last" / "state.json").read_text())["step"]
    assert step >= 5
    result = gptblock("--resume", "--out", run, "--stop-after", "1")
    assert result.exit_code == 0
    assert json.loads((run / "checkpoints" / "last" / "state.json").read_text())["step"] == step + 1


def test_every_part_of_the_model_has_its_flag(text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = {
        "norm": "rmsnorm",
        "norm_placement": "post",
        "norm_eps": 1e-6,
        "feedforward": "swiglu",
        "ff_ratio": 2.0,
        "positions": "rope",
        "qk_norm": True,
        "bias": "none",
        "tie_weights": False,
        "tokenizer": "byte",
        "bpe_vocab_size": 300,
    }
    flags = [*("--norm", "rmsnorm", "--norm-placement", "post", "--norm-eps", "1e-6", "--bias", "none")]
    flags += ["--feedforward", "swiglu", "--ff-ratio", "2", "--positions", "rope", "--qk-norm"]
    flags += ["--no-tie-weights", "--tokenizer", "byte", "--bpe-vocab-size", "300"]
    assert gptblock(text, *TINY, *flags, "--max-iters", "1", "--out", run).exit_code == 0
    assert {name: value for name, value in resolved(run).to_dict().items() if name in given} == given


def test_byte_pairs_without_their_library(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    result = gptblock(text, *TINY, "--tokenizer", "bpe", "--out", tmp_path / "run")
    assert result.exit_code == 4
    assert result.stderr.endswith("which is not installed: pip install 'gptblock[bpe]'\n")
    assert not (tmp_path / "run").exists()
