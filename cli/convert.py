"""`gptblock convert`: another program's checkpoint becomes a run and a bundle, with proof."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from gptblock.cli.console import ignore, say, write
from gptblock.cli.options import Formats, Quiet
from gptblock.cli.table import print_proof
from gptblock.errors import MissingExtraError

if TYPE_CHECKING:
    from gptblock.convert import Conversion


def convert(
    checkpoint: Annotated[
        Path, typer.Argument(help="A state dict of the lecture's, nanoGPT's ckpt.pt, or GPT-2's folder.")
    ],
    *,
    source: Annotated[
        Literal["lecture", "nanogpt", "gpt2"],
        typer.Option("--from", help="What wrote it.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="The run's folder.", show_default=False)],
    vocab: Annotated[
        Path | None,
        typer.Option(
            help="lecture: a text with the vocabulary's characters, such as the corpus; nanogpt: meta.pkl.",
            show_default="nanogpt: beside the checkpoint",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="nanogpt, gpt2: a tokenizer.json.",
            show_default="gpt2: tokenizer.json, or vocab.json and merges.txt, in the folder",
        ),
    ] = None,
    scale: Annotated[
        Literal["head_size", "n_embd"] | None,
        typer.Option(
            help="lecture: what its file scales scores by, which the weights do not tell.",
            show_default="what fits --data",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A text, as train takes it, to measure the loss on.", show_default=False),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Keep so many positions.", show_default="all of the checkpoint's"),
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="To record; it drops nothing here.", show_default="the checkpoint's")
    ] = None,
    format_: Formats = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    quiet: Quiet = False,
) -> None:
    """Convert another program's checkpoint to a run, and export it with the proof of `gptblock export`.

    Prints the proof and a greedy sample. Nothing in the checkpoint is run. Until all is proved, --out stays
    as it was.
    """
    for package in ("torch", "onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("gptblock convert", package, "train")
    from gptblock.convert import convert as convert_checkpoint
    from gptblock.export.build import Format, export

    tell = ignore if quiet else say
    formats: list[Format] = [name for name in get_args(Format) if not format_ or name in format_]

    def finish(run: Path, conversion: Conversion) -> None:
        for line in _report(conversion):
            tell(line)
        tell("exporting, and proving every file against the model")
        export(run, formats, on_proof=print_proof)

    conversion = convert_checkpoint(
        checkpoint,
        source,
        out,
        vocab=vocab,
        tokenizer=tokenizer,
        scale=scale,
        dropout=dropout,
        data=data,
        block_size=block_size,
        overwrite=overwrite,
        finish=finish,
    )
    tell("a greedy sample:")
    write(conversion.sample.lstrip("\n") + "\n")
    tell(f"wrote {out} and its bundle")
    tell(f"next: gptblock generate {shlex.quote(str(out))}")


def _report(conversion: Conversion) -> list[str]:
    config, record = conversion.config, conversion.record
    lines = [
        f"{record.file}: {conversion.parameters:,} parameters, {config.n_layer} layers, "
        f"{config.n_head} heads, width {config.n_embd}, context {config.block_size}, "
        f"vocabulary {config.vocab_size}",
        *conversion.notes,
    ]
    if record.loss is not None:
        lines.append(f"loss on {record.data}: {record.loss:.4f} nats a token")
    return lines
