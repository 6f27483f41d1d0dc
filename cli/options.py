"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

MACHINE = "Machine"
DEMO_TAKEN = "model: the demo that ships with gptblock, for there is no artifacts/model here"

BundleArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Bundle folder, run folder, or .onnx file.", show_default="artifacts/model, or the demo"
    ),
]
Provider = Annotated[
    Literal["auto", "cuda", "cpu"],
    typer.Option(
        help="Execution provider; cuda is CUDA or an error, auto says what it took.", rich_help_panel=MACHINE
    ),
]
DeviceId = Annotated[int, typer.Option(help="Which CUDA device.", rich_help_panel=MACHINE)]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads.", show_default="those this process may use", rich_help_panel=MACHINE),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No news on stderr, only errors.")]
