"""`gptblock doctor`: what this machine can run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gptblock.cli.console import stdout, write, write_json
from gptblock.cli.options import Json
from gptblock.errors import UnavailableError

if TYPE_CHECKING:
    from gptblock.runtime.doctor import Report

_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}


def doctor(json: Json = False) -> None:
    """Show what this machine can run, and why not the rest.

    Versions, installed wheels, and whether models really run on the CPU and on CUDA, each tried. Exit 4
    where they run on neither.
    """
    from gptblock.runtime.doctor import diagnose

    report = diagnose()
    if json:
        write_json({**asdict(report), "can_generate": report.can_generate})
    else:
        _print(report)
    if not report.can_generate:
        raise typer.Exit(UnavailableError.exit_code)


def _print(report: Report) -> None:
    """One line a fact, then one line a finding, with its remedy beneath."""
    from rich.markup import escape

    with stdout().capture() as lines:  # lines are never wrapped, so that commands can be copied
        for name, value in _facts(report):
            stdout().print(f"[bold]{name:<16}[/]{escape(value)}", soft_wrap=True)
        stdout().print()
        for finding in report.findings:
            label = f"[{_COLOURS[finding.level]}]{finding.level:<9}[/]"
            stdout().print(f"{label}{escape(finding.text)}", soft_wrap=True)
            if finding.remedy:
                stdout().print(f"{'':<9}-> {escape(finding.remedy)}", soft_wrap=True)
    write(lines.get())


def _facts(report: Report) -> list[tuple[str, str]]:
    none = "not installed"
    wheels = ", ".join(f"{name} {version}" for name, version in report.wheels.items())
    driver = report.driver
    found = [name for name, loads in report.libraries.items() if loads]
    missing = [name for name, loads in report.libraries.items() if not loads]
    return [
        ("gptblock", report.gptblock),
        ("Python", report.python),
        ("platform", f"{report.platform}, {report.cpus} CPUs for this process"),
        ("numpy", report.numpy or none),
        ("onnxruntime", report.onnxruntime or none),
        ("  wheels", wheels or "none"),
        ("  compiled in", ", ".join(report.compiled_in) or "nothing"),
        ("torch", report.torch or "not installed (running a model needs none)"),
        ("NVIDIA driver", _driver(driver.cuda, driver.devices, driver.fault) if driver else "not found"),
        ("CUDA libraries", ", ".join(found) or "none found"),
        ("  not found", ", ".join(missing) or "none"),
    ]


def _driver(cuda: str, devices: int, fault: str) -> str:
    return f"for CUDA up to {cuda}, " + (fault or f"{devices} device{'' if devices == 1 else 's'}")
