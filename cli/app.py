"""The program `gptblock`: its commands, and how errors become exit codes.

Exit codes: 0 done (a closed pipe too); 1 unexpected, or training diverged; 2 usage or bad input;
3 bundle or run missing, corrupt or not ours; 4 provider or extra not available; 5 proof failed;
130 interrupted (after saving).
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

import gptblock
from gptblock.cli.bench import bench
from gptblock.cli.console import complain, discard, is_first_process, say
from gptblock.cli.convert import convert
from gptblock.cli.doctor import doctor
from gptblock.cli.export import export
from gptblock.cli.generate import generate
from gptblock.cli.inspect import inspect
from gptblock.cli.study import STUDIES
from gptblock.cli.train import train
from gptblock.cli.verify import verify
from gptblock.errors import GptblockError, InterruptedRunError

P = ParamSpec("P")

COMMANDS = (train, convert, export, generate, verify, inspect, bench, doctor)


def _ending_well(command: Callable[P, None]) -> Callable[P, None]:
    """The command with its errors turned into one message on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except GptblockError as error:
            if isinstance(error, InterruptedRunError):  # as asked for
                if is_first_process():
                    say(str(error))
            elif not error.is_told:
                complain(str(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            discard(sys.stdout)
            say("interrupted")
            raise typer.Exit(InterruptedRunError.exit_code) from None
        except BrokenPipeError:
            discard(sys.stdout)  # whoever read it has had enough; what is buffered must not raise at exit
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            wanted = re.search(r"allocate (\d+) bytes", str(error))
            more = f" ({int(wanted[1]) / 1e9:,.1f} GB more were wanted)" if wanted else ""
            complain(
                f"out of memory{more}: less would do, of the model (--n-embd, --n-layer, --block-size), or "
                f"of what it works on at once (--batch-size, tokens, samples, prompts)"
            )
            raise typer.Exit(GptblockError.exit_code) from None
        except OSError as error:  # a full disk, a folder that may not be written
            discard(sys.stdout)
            complain(f"the system refuses: {error}")
            raise typer.Exit(GptblockError.exit_code) from None

    return run


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: Python's, or torch's, which says so in words or by its own class on a GPU."""
    name = type(error).__name__
    return isinstance(error, MemoryError) or name == "OutOfMemoryError" or "allocate" in str(error)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gptblock {gptblock.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Train a small GPT, export it with proof, and run it where there is no torch."""


def program(commands: Sequence[Callable[..., None]], with_study: bool) -> typer.Typer:
    """The program with some of its commands."""
    app = typer.Typer(
        name="gptblock",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(options)
    for command in commands:
        app.command()(_ending_well(command))
    if with_study:
        study = typer.Typer(
            no_args_is_help=True, help="Measure what each part of the block is worth, as the lecture does."
        )
        for command in STUDIES:
            study.command()(_ending_well(command))
        app.add_typer(study, name="study")
    return app


app = program(COMMANDS, with_study=True)


def main() -> None:
    """The console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with it closed
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the process ends
    # Typer looks through all options of all commands it has, for a tenth of a second: so it gets the one.
    named = [command for command in COMMANDS if [command.__name__] == sys.argv[1:2]]
    (program(named, with_study=False) if named else app)(prog_name="gptblock")
