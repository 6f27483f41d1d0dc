"""Write docs/cli.md from the commands themselves: `make docs`. A test holds the two together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import typer

from gptblock.cli import app as program
from gptblock.config import PRESETS, TrainConfig

PAGE = Path(__file__).with_name("cli.md")


def reference() -> str:
    """The page: what each command does, its arguments and its options, panel by panel."""
    group = typer.main.get_command(program.app)
    assert isinstance(group, typer.core.TyperGroup)
    sections = [
        "# The commands",
        "What `gptblock --help` and `gptblock COMMAND --help` say; `make docs` writes this page.",
        _command(group, "gptblock"),
        f"Exit codes: {_exit_codes()}",
    ]
    for name, command in group.commands.items():
        assert isinstance(command, (typer.core.TyperCommand, typer.core.TyperGroup))
        sections += [f"## {name}", _command(command, f"gptblock {name}")]
        for inner in _commands_of(command):
            sections += [f"### {name} {inner.name}", _command(inner, f"gptblock {name} {inner.name}")]
    sections += ["## The presets of train", _presets()]
    return "\n\n".join(sections) + "\n"


def _commands_of(
    command: typer.core.TyperCommand | typer.core.TyperGroup,
) -> Iterator[typer.core.TyperCommand]:
    """The commands of a group, and of a command none."""
    for inner in command.commands.values() if isinstance(command, typer.core.TyperGroup) else ():
        assert isinstance(inner, typer.core.TyperCommand)
        yield inner


def _command(command: typer.core.TyperCommand | typer.core.TyperGroup, name: str) -> str:
    """Usage, help, and a table for each panel of parameters, in the order of `--help`."""
    context = typer.Context(command, info_name=name)
    panels: dict[str, list[str]] = {}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None or param.name == "help":
            continue
        kind = "Arguments" if param.param_type_name == "argument" else "Options"
        panel = getattr(param, "rich_help_panel", None) or kind
        names, text = record
        # Typer puts the default behind the help, in brackets.
        what, _, default = text.partition("  [default: ")
        default = default.removesuffix("]").removeprefix("(").removesuffix(")")
        panels.setdefault(panel, []).append(_row(f"`{names}`", what.replace("*", "\\*"), default))
    tables = [_table([panel, "", "default"], rows) for panel, rows in panels.items()]
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    return "\n\n".join([f"    {usage}", command.help or "", *tables])


def _presets() -> str:
    """Every field of a training run, preset by preset."""
    configs = [TrainConfig.from_dict(fields) for fields in PRESETS.values()]
    rows = [
        _row(f"`{field.name}`", *(str(getattr(config, field.name)) for config in configs))
        for field in dataclasses.fields(TrainConfig)
    ]
    return _table(["field", *PRESETS], rows)


def _exit_codes() -> str:
    """The paragraph of the program's own docstring that lists them."""
    text = (program.__doc__ or "").split("Exit codes: ")[1]
    return " ".join(text.split())


def _table(head: list[str], rows: list[str]) -> str:
    return "\n".join([_row(*head), _row(*["---"] * len(head)), *rows])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8", newline="\n")
