"""The reference of the commands is what the commands say."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("columns", ["40", "200"])
def test_cli_reference_is_what_the_generator_makes(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    page = runpy.run_path(str(DOCS / "generate_cli.py"))["reference"]()
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == page, "docs/cli.md is out of date: make docs"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_names_every_target() -> None:
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    said = subprocess.run(["make", "-C", DOCS.parent], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make ([a-z-]+) ", said, re.MULTILINE)) == targets
