"""`gptblock inspect RUN_A RUN_B`: two runs beside each other, and what is said where there are not two."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gptblock.cli.app import app
from gptblock.config import ModelConfig, TrainConfig
from gptblock.model import GPT, count_parameters
from gptblock.training import train
from gptblock.training.metrics import read_measurements

SMALL = TrainConfig(
    block_size=8, n_layer=1, n_head=2, n_embd=8, batch_size=4, max_iters=6, eval_interval=3, eval_iters=1,
    device="cpu", threads=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `one` and `two`, of one text, and `moved`, of another one."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("to be or not to be\n" * 20)
    (folder / "other.txt").write_text("to be or not to be\n" * 21)
    config = SMALL.replace(data=str(folder / "text.txt"))
    train(config, folder / "one")
    train(config.replace(n_layer=2, positions="rope", max_iters=9), folder / "two", stop_after=7)
    train(SMALL.replace(data=str(folder / "other.txt")), folder / "moved")
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, and the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def inspect(*args: str) -> Result:
    return CliRunner().invoke(app, ["inspect", *args])


def rows(output: str) -> dict[str, list[str]]:
    """Each row's cells by its name, the two last words of a line being the runs'."""
    cells = [line.replace(" of ", "/").split() for line in output.splitlines() if line.strip()]
    return {" ".join(words[:-2]): words[-2:] for words in cells if len(words) > 2}


def test_what_differs_and_where_it_led(runs: Path) -> None:
    result = inspect("one", "two")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    one, two = (read_measurements(runs / name / "metrics.jsonl") for name in ("one", "two"))
    sizes = [
        count_parameters(
            GPT(ModelConfig(8, 8, n_layer=layers, n_head=2, n_embd=8, positions=positions))  # type: ignore[arg-type]
        )
        for layers, positions in ((1, "learned"), (2, "rope"))
    ]
    assert rows(result.stdout) == {
        "n_layer": ["1", "2"],
        "positions": ["learned", "rope"],
        "max_iters": ["6", "9"],
        "lr_decay_iters": ["6", "9"],
        "parameters": [f"{size:,}" for size in sizes],
        "steps": ["6/6", "6/9"],  # measured; the seventh is not
        "tokens seen": ["192", "192"],
        "training loss": [f"{one[-1].train_loss:.4f}", f"{two[-1].train_loss:.4f}"],
        "validation loss": [f"{one[-1].val_loss:.4f}", f"{two[-1].val_loss:.4f}"],
        "best validation loss": [f"{min(m.val_loss for m in run):.4f}" for run in (one, two)],
        "at step": [str(min(run, key=lambda m: m.val_loss).step) for run in (one, two)],
        "seconds on steps": [f"{run[-1].seconds:,.1f}" for run in (one, two)],
    }
    assert [line.split() for line in result.stdout.splitlines() if "one" in line] == [["one", "two"]]


def test_another_text_is_told_by_its_sum(runs: Path) -> None:
    sums = [hashlib.sha256((runs / name).read_bytes()).hexdigest()[:8] for name in ("text.txt", "other.txt")]
    assert rows(inspect("one", "moved").stdout)["text, sha256"] == sums
    assert "text, sha256" not in rows(inspect("one", "two").stdout)


def test_one_json_object_and_a_picture(runs: Path) -> None:
    result = inspect("one", "two", "--json", "--svg", "both.svg")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["kind"] == "comparison"
    assert values["svg"] == "both.svg"
    assert values["differences"] == {
        "n_layer": [1, 2],
        "positions": ["learned", "rope"],
        "max_iters": [6, 9],
        "lr_decay_iters": [6, 9],
    }
    assert [run["path"] for run in values["runs"]] == ["one", "two"]
    assert [m["step"] for m in values["runs"][1]["measurements"]] == [0, 3, 6]
    assert values["runs"][0]["last"] == values["runs"][0]["measurements"][-1]
    best = values["runs"][0]["best"]
    assert best["val_loss"] == min(m["val_loss"] for m in values["runs"][0]["measurements"])
    picture = (runs / "both.svg").read_text()
    assert f"<!-- best: {best['val_loss']:.4f} at step {best['step']} -->" in picture
    assert "<!-- validation, two -->" in picture
    assert "both.svg" in inspect("one", "two", "--svg", "both.svg").stderr


def test_a_copy_differs_in_nothing(runs: Path) -> None:
    shutil.copytree(runs / "one", runs / "copy")
    result = inspect("one", "copy")
    assert result.exit_code == 0
    assert result.stderr == "both runs have the same configuration\n"
    assert next(iter(rows(result.stdout))) == "parameters"


def unmeasured(runs: Path) -> None:
    (runs / "two" / "metrics.jsonl").unlink()


def bundled(runs: Path) -> None:
    (runs / "two" / "bundle").mkdir()
    (runs / "two" / "bundle" / "manifest.json").write_text("{}")
    (runs / "two" / "bundle" / "model.onnx").touch()


def converted(runs: Path) -> None:
    shutil.rmtree(runs / "two" / "checkpoints" / "last")
    (runs / "two" / "config.toml").unlink()


def garbled(runs: Path) -> None:
    (runs / "two" / "metrics.jsonl").write_text("{}\n")


def nothing(runs: Path) -> None:
    (runs / "two" / "empty").mkdir()


@pytest.mark.parametrize(
    ("before", "args", "code", "message"),
    [
        (nothing, ["one", "one"], 2, "one and one are the same run: give two different ones"),
        (nothing, ["one", "two/../one"], 2, "one and two/../one are the same run"),
        (nothing, ["one", "absent"], 3, "absent is not there: to compare, give two folders"),
        (nothing, ["two/empty", "one"], 3, "two/empty holds no run: to compare, give two folders"),
        (nothing, ["one", "text.txt"], 3, "text.txt holds no run"),
        (unmeasured, ["one", "two"], 3, "the run in two has no losses to compare (metrics.jsonl is missing"),
        (bundled, ["one", "two/bundle"], 3, "two/bundle is a bundle, which has no losses to "
            "compare: give the folder of the run, such as two\n"),
        (bundled, ["one", "two/bundle/model.onnx"], 3, "give the folder of the run, such as two\n"),
        (converted, ["one", "two"], 3, "the run in two was converted from another program's checkpoint"),
        (garbled, ["one", "two"], 3, "line 1 of two/metrics.jsonl is no measurement"),
        (nothing, ["one", "two", "--card"], 2, "--card shows the card of one bundle"),
        (nothing, ["one", "--svg", "x.svg"], 2, "--svg draws the losses of two runs: give both"),
        (nothing, ["one", "two", "--svg", "no/x.svg"], 2, "a file in a folder that is there: got no/x.svg"),
        (nothing, ["one", "two", "--svg", "two"], 2, "a file in a folder that is there: got two"),
    ],
)  # fmt: skip
def test_refusals(runs: Path, before: object, args: list[str], code: int, message: str) -> None:
    assert callable(before)
    before(runs)
    result = inspect(*args)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not list(runs.glob("*.svg"))
