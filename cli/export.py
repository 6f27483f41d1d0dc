"""`gptblock export`: a run becomes a bundle, with proof."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from gptblock.cli.console import ignore, say, write
from gptblock.cli.options import Formats, PrecisionName, Quiet
from gptblock.cli.table import print_proof
from gptblock.errors import MissingExtraError


def export(
    run: Annotated[Path, typer.Argument(help="A folder that `gptblock train` wrote.")] = Path(
        "artifacts/model"
    ),
    format_: Formats = None,
    precision: Annotated[
        list[PrecisionName] | None,
        typer.Option(
            help="Repeat for several; model.onnx in fp32 is always written. fp16 is for GPUs, int8 and int4 "
            "are smaller. Each is proved within its tolerance, and its loss on a text told.",
            show_default="fp32",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A text, as train takes it, to measure what a lower precision costs.",
            show_default="what the training validated on",
        ),
    ] = None,
    checkpoint: Annotated[
        Literal["best", "last"], typer.Option(help="The lowest validation loss, or the last step.")
    ] = "best",
    quiet: Quiet = False,
) -> None:
    """Export a run to RUN/bundle, proving each file against PyTorch.

    The bundle is replaced as a whole by what is named here. A file that fails its proof writes nothing
    (exit 5).
    """
    for package in ("torch", "onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("gptblock export", package, "train")
    from gptblock.bundle.manifest import Precision
    from gptblock.export.build import Format
    from gptblock.export.build import export as export_run

    formats: list[Format] = [name for name in get_args(Format) if not format_ or name in format_]
    precisions: list[Precision] = [name for name in get_args(Precision) if name in (precision or ())]
    tell = ignore if quiet else say
    manifest = export_run(
        run, formats, precisions, checkpoint=checkpoint, data=data, on_proof=print_proof, on_note=tell
    )
    for name, entry in manifest.files.items():
        if entry.cost:
            write(f"{name}: {entry.cost}\n")
    megabytes = sum(entry.size for entry in manifest.files.values()) / 1e6
    tell(f"wrote {run / 'bundle'}: {', '.join(manifest.files)} ({megabytes:.1f} MB)")
    tell(f"next: gptblock generate {run}")
