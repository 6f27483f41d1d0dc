"""Asking for help imports nothing heavy, and every command answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import typer
from typer.testing import CliRunner

import gptblock
from gptblock.cli.app import app, main

# What takes long to import, and what a machine that only runs models does not have.
HEAVY = {
    "torch",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "numpy",
    "matplotlib",
    "safetensors",
    "pooch",
    "tokenizers",
}
COMMANDS = ("train", "convert", "export", "generate", "verify", "inspect", "bench", "doctor", "study")


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gptblock", *args],
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def imported(importtime: str) -> set[str]:
    """The top-level modules in what PYTHONPROFILEIMPORTTIME makes Python write to stderr."""
    return set(re.findall(r"^import time:.*\|\s+(\w+)[\w.]*$", importtime, flags=re.MULTILINE))


@pytest.mark.parametrize(
    "args",
    [[], *([name] for name in COMMANDS), ["study", "ladder"]],
    ids=lambda args: " ".join(args) or "none",
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    result = run(*args, "--help", PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0, result.stderr[-2000:]
    assert f"Usage: gptblock {' '.join(args)}".rstrip() in result.stdout
    modules = imported(result.stderr)
    assert {"gptblock", "typer"} <= modules
    assert modules & HEAVY == set()


def test_the_program_lists_every_command() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert tuple(group.commands) == COMMANDS
    listed = run("--help").stdout
    assert [name for name in COMMANDS if not re.search(rf"^\W*{name}\s", listed, flags=re.MULTILINE)] == []


def test_the_import_measure_sees_numpy() -> None:
    measured = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import numpy"], capture_output=True, text=True, check=True
    )
    assert "numpy" in imported(measured.stderr)


def test_no_command_is_help_and_a_usage_error() -> None:
    result = run()
    assert result.returncode == 2
    assert "Usage: gptblock" in result.stdout + result.stderr


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"gptblock {gptblock.__version__}\n")


def test_console_script_is_the_same_program() -> None:
    (script,) = entry_points(group="console_scripts", name="gptblock")
    assert script.value == "gptblock.cli.app:main"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_the_same_as_among_all(name, monkeypatch, capsys):
    """`main` gives Typer only the command that is named, for it takes long to look through them all."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["gptblock", name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    among_all = CliRunner().invoke(app, [name, "--help"], prog_name="gptblock")
    assert capsys.readouterr().out == among_all.output
