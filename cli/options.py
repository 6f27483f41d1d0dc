"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

MACHINE = "Machine"
DEMO_TAKEN = "model: the demo that ships with gptblock, for there is no artifacts/model here"


class FormatName(StrEnum):
    """`gptblock.export.build.Format` for Typer, which takes no list of a Literal."""

    ONNX = "onnx"
    TORCHSCRIPT = "torchscript"


class PrecisionName(StrEnum):
    """`gptblock.bundle.manifest.Precision` for Typer, likewise."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"


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
Tf32 = Annotated[
    bool,
    typer.Option(
        "--tf32/--no-tf32",
        help="Let CUDA round factors to 10 bits: faster, and no longer what verify proves.",
        rich_help_panel=MACHINE,
    ),
]
CudaGraphs = Annotated[
    bool,
    typer.Option(
        "--cuda-graphs/--no-cuda-graphs",
        help="Let CUDA record a step and replay it; each size of batch takes the weights once more.",
        rich_help_panel=MACHINE,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads.", show_default="those this process may use", rich_help_panel=MACHINE),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Formats = Annotated[
    list[FormatName] | None,
    typer.Option(
        "--format",
        help="Repeat for several; model.onnx is always written.",
        show_default="onnx and torchscript",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No news on stderr, only errors.")]
