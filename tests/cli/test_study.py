"""`gptblock study`: the table, the files, the JSON and the exit codes, in very few steps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from gptblock.cli.app import app
from gptblock.config import TrainConfig
from gptblock.errors import CorpusError
from gptblock.study import conduct, design
from gptblock.study.feedforward import equal_parameters
from gptblock.study.ladder import FAST, RUNGS
from gptblock.study.norm import KINDS, RATES
from gptblock.study.norm import name as norm_name
from gptblock.study.residual import name as residual_name

ARMS = {
    "ladder": [*(rung.name for rung in RUNGS), *FAST.values()],
    "residual": [residual_name(depth, added) for depth in (1, 4) for added in (True, False)],
    "norm": [norm_name(kind, rate) for rate in RATES for kind in KINDS],
    "feedforward": [*(f"ratio {n}" for n in (1, 2, 4, 8)), *(equal_parameters(n) for n in (1, 2, 8))],
}


def study(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question\n" * 40)
    return str(path)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """--quick is two steps, instead of hundreds."""

    def shortened(config: TrainConfig) -> TrainConfig:
        return config.replace(max_iters=2, warmup_iters=0, eval_interval=1, eval_iters=1)

    monkeypatch.setattr(conduct, "shortened", shortened)


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.usefixtures("hasty")
def test_a_study_ends_in_a_table_a_sentence_a_picture_and_json(name: str, text: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = study(name, "--quick", "--data", text, "--jobs", "1", "--out", out)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "results.json").read_text())
    assert list(report["arms"]) == [run["arm"] for run in report["runs"]] == ARMS[name]
    assert [row[0] for row in report["table"]["rows"]] == ARMS[name]
    assert (report["study"], report["quick"], report["seeds"]) == (name, True, [1337])
    for run in report["runs"]:
        config = report["arms"][run["arm"]]
        assert config["data"] == report["corpus"] == text
        assert config["max_iters"] == run["curve"][-1]["step"] == 2
        assert 1 < run["curve"][-1]["val_loss"] < 6
    shown = " ".join(result.stdout.split())
    assert result.stdout.startswith(f"{report['title']}, on {text}: one seed\n")
    for line in (report["expected"], report["verdict"]["sentence"], *report["verdict"]["notes"]):
        assert line in shown
    assert "(in one seed, which cannot tell it from chance)" in report["verdict"]["sentence"]
    picture = (out / "curves.svg").read_text()
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert [arm for arm in ARMS[name] if f">{arm}</text>" not in picture] == []
    news = result.stderr.splitlines()
    assert news[0] == f"study {name} on {text}: {len(ARMS[name])} runs, 1 at a time"
    assert [line.split(", seed")[0] for line in news[1:-1]] == [
        f"{number} of {len(ARMS[name])}: {arm}" for number, arm in enumerate(ARMS[name], start=1)
    ]
    assert news[-1] == f"picture: {out / 'curves.svg'}"


@pytest.mark.usefixtures("hasty")
def test_json_is_the_file_and_quiet_is_quiet(text: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["residual", "--quick", "--data", text, "--jobs", "1", "--out", out, "--json", "--quiet"]
    result = study(*flags, "--seeds", "2", "--seed", "5")
    assert (result.exit_code, result.stderr) == (0, "")
    printed = json.loads(result.stdout)
    assert printed == json.loads((out / "results.json").read_text())
    assert printed["seeds"] == [5, 6]
    assert [run["seed"] for run in printed["runs"]] == [5] * 4 + [6] * 4
    assert "in one seed" not in printed["verdict"]["sentence"]

    refused = study(*flags)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--overwrite replaces them" in refused.stderr
    replaced = study(*flags, "--overwrite")
    assert replaced.exit_code == 0
    assert json.loads((out / "results.json").read_text())["seeds"] == [1337]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds must be >= 1: got 0"),
        (["--jobs", "0"], "--jobs must be >= 1: got 0"),
        (["--seed", "-1"], "seed must be >= 0: got -1"),
        (["--data", "nowhere.txt"], "'nowhere.txt' is neither a file, nor a folder, nor a named corpus"),
        (["--data", "short.txt"], "the corpus is too short for block_size = 8"),
        (["--out", "short.txt"], "short.txt is a file, and results are a folder"),
        (["--out", "short.txt/out"], "nothing can be written into short.txt/out"),
        (["--out", "full"], "full holds other files and no study's results"),
    ],
)
def test_refusals_are_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("to be or not")
    Path("full").mkdir()
    Path("full", "other.txt").touch()
    data = [] if "--data" in arguments else ["--data", text]
    result = study("norm", "--quick", *data, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("artifacts").exists()


def test_an_unknown_study_or_option() -> None:
    assert study("dropout").exit_code == 2
    assert study("norm", "--seeds", "some").exit_code == 2


@pytest.mark.parametrize("package", ["torch", "matplotlib", "pooch"])
def test_a_missing_package_prints_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = study("ladder")
    assert result.exit_code == 4
    assert f"gptblock study ladder needs {package}" in result.stderr
    assert "pip install 'gptblock[train]'" in result.stderr


def test_the_lectures_text_or_pydoc_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(load: Callable[[str], object], data: str | None = None) -> tuple[str, list[str]]:
        monkeypatch.setattr(conduct, "load_corpus", load)
        news: list[str] = []
        return conduct.choose_corpus(data, news.append), news

    def offline(_name: str) -> None:
        raise CorpusError(
            "tinyshakespeare.txt could not be downloaded from U (no route). Instead, name a file"
        )

    assert choose(lambda _: None) == ("tinyshakespeare", [])
    assert choose(offline, "tinyshakespeare") == ("tinyshakespeare", [])  # as asked for, and refused later
    assert choose(offline) == (
        "pydoc",
        [
            "the text is pydoc, and nothing is compared with the lecture's numbers: "
            "tinyshakespeare.txt could not be downloaded from U (no route)"
        ],
    )


def test_quick_is_a_tenth_of_everything() -> None:
    arms = {arm.name: design.shortened(arm.config) for arm in conduct.STUDIES["norm"](65).arms}
    warmed = arms[norm_name(KINDS[1], RATES[0])]
    assert (warmed.max_iters, warmed.warmup_iters, warmed.eval_interval) == (100, 20, 20)
