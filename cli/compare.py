"""How `gptblock inspect RUN_A RUN_B` shows two runs beside each other."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gptblock.cli.console import printable, say, show, write_json
from gptblock.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from gptblock.training.compare import RunSummary


def compare(first: Path, second: Path, svg: Path | None, json: bool) -> None:
    """What the two were told differently, where it led, and both their losses in one picture."""
    for package in ("torch", "tomli_w", *(["matplotlib"] if svg else [])):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("comparing two runs", package, "train")
    from gptblock.training.compare import differing, read_runs

    if svg and (svg.is_dir() or not svg.parent.is_dir()):
        raise InputError(f"--svg must be a file in a folder that is there: got {svg}")
    runs = read_runs(first, second)
    differences = differing(*(run.config for run in runs))
    if svg:
        _draw(runs, svg)
    if json:
        write_json(
            {
                "kind": "comparison",
                "differences": {name: list(values) for name, values in differences.items()},
                "runs": [_as_json(run) for run in runs],
                "svg": str(svg) if svg else None,
            }
        )
        return
    rows = {name: (str(one), str(other)) for name, (one, other) in differences.items()}
    if not rows:
        say("both runs have the same configuration")
    if runs[0].data_sha256 != runs[1].data_sha256:
        rows["text, sha256"] = (runs[0].data_sha256[:8], runs[1].data_sha256[:8])
    _print_rows(runs, rows)
    if svg:
        say(f"both runs' losses: {svg}")


def _print_rows(runs: Sequence[RunSummary], differences: dict[str, tuple[str, str]]) -> None:
    """The fields that differ, then what became of each run."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    table.add_column("", overflow="fold")
    for run in runs:
        table.add_column(Text(printable(str(run.path))), justify="right", overflow="fold")
    for name, values in differences.items():
        table.add_row(Text(name), *(Text(printable(value)) for value in values))
    table.add_section()
    results = [_results(run) for run in runs]
    for name in results[0]:
        table.add_row(name, *(result[name] for result in results))
    show(table)


def _results(run: RunSummary) -> dict[str, str]:
    last, best = run.last, run.best
    steps = last.step * run.config.batch_size * run.config.block_size
    return {
        "parameters": f"{run.parameters:,}",
        "steps": f"{last.step} of {run.config.max_iters}",
        "tokens seen": f"{steps:,}",
        "training loss": f"{last.train_loss:.4f}",
        "validation loss": f"{last.val_loss:.4f}",
        "best validation loss": f"{best.val_loss:.4f}",
        "at step": str(best.step),
        "seconds on steps": f"{last.seconds:,.1f}",
    }


def _as_json(run: RunSummary) -> dict[str, object]:
    return {
        "path": str(run.path),
        "config": run.config.to_dict(),
        "data_sha256": run.data_sha256,
        "parameters": run.parameters,
        "last": dataclasses.asdict(run.last),
        "best": dataclasses.asdict(run.best),
        "measurements": [dataclasses.asdict(measurement) for measurement in run.measurements],
    }


def _draw(runs: Sequence[RunSummary], svg: Path) -> None:
    from gptblock.bundle.store import write_file
    from gptblock.training.plot import draw_comparison

    write_file(svg, draw_comparison({str(run.path): run.measurements for run in runs}))
