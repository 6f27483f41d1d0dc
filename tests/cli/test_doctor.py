import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner, Result

from gptblock.cli.doctor import doctor
from gptblock.runtime.cuda import Driver
from gptblock.runtime.doctor import Finding, Report

REPORT = Report(
    gptblock="0.1.0",
    python="3.11.7",
    platform="Linux-6.1",
    cpus=2,
    numpy="2.4.6",
    onnxruntime="1.31.1",
    torch=None,
    wheels={"onnxruntime-gpu": "1.31.1"},
    compiled_in=("CUDAExecutionProvider", "CPUExecutionProvider"),
    usable=("cpu",),
    driver=Driver("13.0", 1),
    libraries={"libcublas.so.13": True, "libcudnn.so.9": False},
    findings=(
        Finding("ok", "models run on the CPU"),
        Finding("problem", "CUDA [13] " + "is not there " * 10 + "at all", "pip install 'gptblock[gpu]'"),
    ),
)

app = typer.Typer()
app.command()(doctor)


def run(report: Report, monkeypatch: pytest.MonkeyPatch, *args: str) -> Result:
    monkeypatch.setattr("gptblock.runtime.doctor.diagnose", lambda: report)
    return CliRunner().invoke(app, args)


def test_facts_then_findings_with_remedies_that_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(REPORT, monkeypatch)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "gptblock        0.1.0",
        "Python          3.11.7",
        "platform        Linux-6.1, 2 CPUs for this process",
        "numpy           2.4.6",
        "onnxruntime     1.31.1",
        "  wheels        onnxruntime-gpu 1.31.1",
        "  compiled in   CUDAExecutionProvider, CPUExecutionProvider",
        "torch           not installed (running a model needs none)",
        "NVIDIA driver   for CUDA up to 13.0, 1 device",
        "CUDA libraries  libcublas.so.13",
        "  not found     libcudnn.so.9",
        "",
        "ok       models run on the CPU",
        "problem  CUDA [13] " + "is not there " * 10 + "at all",
        "         -> pip install 'gptblock[gpu]'",
    ]


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_exit_4_where_nothing_runs(args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = replace(
        REPORT, usable=(), onnxruntime=None, wheels={}, compiled_in=(), libraries={}, driver=None
    )
    result = run(nothing, monkeypatch, *args)
    assert result.exit_code == 4
    assert "not installed" in result.stdout or json.loads(result.stdout)["onnxruntime"] is None


def test_json_is_the_whole_report(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(REPORT, monkeypatch, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["can_generate"] is True
    assert report["driver"] == {"cuda": "13.0", "devices": 1, "fault": ""}
    assert report["libraries"] == {"libcublas.so.13": True, "libcudnn.so.9": False}
    assert report["findings"][0] == {"level": "ok", "text": "models run on the CPU", "remedy": ""}


def test_on_the_machine_that_runs_the_tests() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "models run on the CPU" in result.stdout
