"""The table of a proof, the same for `export` and `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptblock.cli.console import show

if TYPE_CHECKING:
    from gptblock.bundle.manifest import Check


def print_proof(title: str, checks: Sequence[Check]) -> None:
    """One row a check on stdout: what, cases, worst difference, allowed, whether it holds."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE)
    table.add_column("what")
    for column in ("cases", "worst", "allowed"):
        table.add_column(column, justify="right")
    table.add_column("")
    for check in checks:
        holds = "[green]holds[/]" if check.ok else "[bold red]FAILS[/]"
        table.add_row(Text(check.name), str(check.cases), f"{check.worst:.2g}", f"{check.allowed:.2g}", holds)
    show(table)
