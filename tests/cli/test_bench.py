"""`gptblock bench`: the tables, the JSON and the exit codes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gptblock.bundle.manifest import Precision
from gptblock.cli.app import app
from gptblock.cli.bench import PrecisionName
from gptblock.runtime import fresh, speed
from gptblock.runtime.bench import Benchmark
from gptblock.runtime.fresh import Footprint
from gptblock.runtime.session import Provider
from gptblock.runtime.speed import Speed, Spread

SPEED = Speed(
    precision="fp32",
    threads=2,
    batch=8,
    decode=Spread(0.5, 0.75, 6),
    decode_tokens_per_second=16000.0,
    prefill=Spread(12.34, 1234.5, 2),
    prefill_tokens_per_second=82982.2,
    first_token=Spread(2.0, 3.0, 2),
    step_bytes=4_900_000,
    bandwidth=49e9,
    floor=0.1,
    reached=0.2,
)
RESULT = Benchmark(
    path=Path("bundle"),
    provider=Provider("cpu", 0, "asked for"),
    prompt_tokens=16,
    max_new_tokens=4,
    prefill_tokens=128,
    rounds=2,
    speeds=[SPEED],
    footprints=[Footprint("fp32", "model.onnx", 3_300_000, 2, Spread(300.0, 321.0, 3), 6_600_000, 2.0)],
    unmeasured=["fp16: it does not open"],
    cpus=2,
    load_average=None,
    platform="Linux",
    versions={},
)
UNKNOWN = {"bandwidth": None, "floor": None, "reached": None}


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(speed, "_SETTLE", 0)
    monkeypatch.setattr(fresh, "_STARTS", 1)
    return ("--provider", "cpu", "--threads", "1", "--batch", "2", "--rounds", "2")


@pytest.fixture
def returns(monkeypatch):
    def make(result: Benchmark) -> None:
        monkeypatch.setattr("gptblock.runtime.bench.bench", lambda *_, **__: result)

    return make


def cells(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.startswith("  fp32")]


def test_the_tables(returns, tiny_bundle):
    returns(RESULT)
    result = call(tiny_bundle)
    assert result.exit_code == 0
    assert cells(result.stdout) == [
        ["fp32", "2", "8", "decode", "16,000", "0.500", "0.750"],
        ["fp32", "2", "8", "prefill", "128", "82,982", "12.3", "1,234.5"],
        ["fp32", "2", "8", "first", "after", "16", "2.000", "3.000"],
        ["fp32", "2", "8", "4.9", "49.0", "0.100", "20%"],
        ["fp32", "2", "300.0", "321.0", "3.3", "6.6", "2.0", "x"],
    ]
    assert result.stdout.splitlines()[-1] == "not measured here: fp16: it does not open"
    assert result.stderr == "provider: cpu (asked for)\n"
    assert max(map(len, result.stdout.splitlines()[:-4])) <= 80


def test_what_is_not_known_is_said(returns, tiny_bundle):
    unknown = Footprint("fp32", "model.onnx", 3_300_000, 2, Spread(300.0, 321.0, 3), None, None)
    returns(Benchmark(**vars(RESULT) | {"speeds": [Speed(**vars(SPEED) | UNKNOWN)], "footprints": [unknown]}))
    assert cells(call(tiny_bundle).stdout)[-2:] == [
        ["fp32", "2", "8", "4.9", "unknown", "unknown", "unknown"],
        ["fp32", "2", "300.0", "321.0", "3.3", "unknown", "unknown"],
    ]


def test_json_is_the_whole_result(tiny_bundle, quick):
    result = call(tiny_bundle, "--json", "-n", "3", *quick)
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout)
    assert list(printed) == list(Benchmark.__dataclass_fields__)
    assert printed["path"] == str(tiny_bundle)
    assert printed["provider"] == asdict(Provider("cpu", 0, "asked for"))
    (measured,) = printed["speeds"]
    assert list(measured) == list(Speed.__dataclass_fields__)
    assert (measured["precision"], measured["threads"], measured["batch"]) == ("fp32", 1, 2)
    assert list(measured["decode"]) == ["p50", "p95", "count"]
    assert measured["decode"]["count"] == 2 * 2
    assert 0 < measured["decode"]["p50"] <= measured["decode"]["p95"]
    assert measured["reached"] == pytest.approx(
        measured["step_bytes"] / measured["bandwidth"] * 1000 / measured["decode"]["p50"]
    )
    (footprint,) = printed["footprints"]
    assert list(footprint) == list(Footprint.__dataclass_fields__)
    assert footprint["start_up"]["count"] == 1
    assert result.stderr.splitlines() == [
        "round 1 of 2: 1 configurations in turn",
        "round 2 of 2: 1 configurations in turn",
        "start-up and memory, in fresh processes",
        "provider: cpu (asked for)",
    ]


def test_quiet_and_the_demo(returns, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    returns(RESULT)
    assert "model: the demo that ships with gptblock" in call().stderr
    assert call("--quiet").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--batch", "0"], 2, "batch must be >= 1: got 0"),
        (["--threads", "0"], 2, "threads must be in 1..1024: got 0"),
        (["--rounds", "0"], 2, "rounds must be >= 1: got 0"),
        (["-n", "100"], 2, "must be at most block_size, 16"),
        (["--prompt-tokens", "16"], 2, "must be at most block_size, 16"),
        (["--prefill-tokens", "17"], 2, "must be at most block_size, 16"),
        (["--precision", "int8"], 3, "has no int8 graph; it has fp32"),
        (["--precision", "int9"], 2, "int9"),
    ],
)
def test_refusals(tiny_bundle, arguments, code, message):
    result = call(tiny_bundle, "--provider", "cpu", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_nothing_there(tmp_path):
    result = call(tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (3, "")


def test_precisions_are_those_of_a_bundle():
    assert [name.value for name in PrecisionName] == list(Precision.__args__)
