"""`gptblock study`: the lecture's experiments, each a table, a picture and a sentence."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gptblock.cli.console import ignore, say, show, write, write_json
from gptblock.cli.options import Json, Quiet
from gptblock.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from gptblock.study.report import Report
    from gptblock.study.run import Run

_RUNS, _QUICK_RUNS = 3, 1  # seeds

Data = Annotated[
    str | None,
    typer.Option(
        help="A text file, a folder of *.txt, or a named corpus.",
        show_default="tinyshakespeare, or pydoc where that cannot be downloaded",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The folder of the results.", show_default="artifacts/study/ and the study's name"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")]
Quick = Annotated[bool, typer.Option("--quick", help="A tenth of the steps, measured less exactly.")]
Seeds = Annotated[
    int | None, typer.Option(help="How many seeds.", show_default=f"{_RUNS}, with --quick {_QUICK_RUNS}")
]
Seed = Annotated[int, typer.Option(help="The first of them.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="Runs at a time, of one thread each.", show_default="the CPUs this process may use"),
]


def _study(name: str, help_text: str) -> Callable[..., None]:
    """The command of one study; they differ in name and help alone."""

    def command(
        *,
        out: Out = None,
        overwrite: Overwrite = False,
        data: Data = None,
        quick: Quick = False,
        seeds: Seeds = None,
        seed: Seed = 1337,
        jobs: Jobs = None,
        json: Json = False,
        quiet: Quiet = False,
    ) -> None:
        for package in ("torch", "matplotlib", "pooch"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(f"gptblock study {name}", package, "train")
        for what, value in (("--seeds", seeds), ("--jobs", jobs)):
            if value is not None and value < 1:
                raise ConfigError(f"{what} must be >= 1: got {value}")
        from gptblock.runtime.processor import allowed_cpus
        from gptblock.study.conduct import choose_corpus, conduct
        from gptblock.study.report import PICTURE, require_free, write_report

        tell = ignore if quiet else say
        folder = out or Path("artifacts", "study", name)
        require_free(folder, overwrite)
        count = seeds or (_QUICK_RUNS if quick else _RUNS)
        corpus, jobs = choose_corpus(data, tell), jobs or allowed_cpus()
        report = conduct(
            name,
            corpus,
            range(seed, seed + count),
            jobs=jobs,
            quick=quick,
            on_start=lambda runs: tell(f"study {name} on {corpus}: {runs} runs, {min(jobs, runs)} at a time"),
            on_done=lambda run, done, total: tell(_news(run, done, total)),
        )
        write_report(report, folder)
        if json:
            write_json(report.to_dict())
        else:
            _print(report)
        tell(f"picture: {folder / PICTURE}")

    command.__name__ = name
    command.__doc__ = help_text
    return command


STUDIES = (
    _study(
        "ladder", "The lecture's losses, from the bigram to the block with residual additions and LayerNorm."
    ),
    _study(
        "residual",
        "1 and 4 blocks, with and without residual additions: what they gain grows with the depth.",
    ),
    _study("norm", "Post-norm, post-norm with a warm-up, and pre-norm, at two learning rates."),
    _study("feedforward", "The feed-forward's width, at equal width and at equal parameters."),
)


def _news(run: Run, done: int, total: int) -> str:
    what = (
        f"validation loss {run.val_loss:.4f}" if run.diverged_at is None else f"diverged at {run.diverged_at}"
    )
    return f"{done} of {total}: {run.arm}, seed {run.seed}: {what}, {run.cpu_seconds:.0f} s of CPU"


def _print(report: Report) -> None:
    """The table, whether the expected answer showed, and what else the results say."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    count = len(report.seeds)
    what = f"mean ± standard deviation of {count} seeds" if count > 1 else "one seed"
    write(f"{report.title}, on {report.corpus}: {what}\n")
    table = Table(box=box.SIMPLE)
    for number, column in enumerate(report.table.columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in report.table.rows:
        table.add_row(*map(Text, row))
    show(table)
    write(f"expected: {report.expected}\n")
    for line in (report.verdict.sentence, *report.verdict.notes):
        write(f"{line}\n")
    if report.quick:
        write(
            "--quick trains a tenth of the steps: what shows or does not may be another with all of them.\n"
        )
