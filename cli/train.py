"""`gptblock train`: text becomes a run directory."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gptblock.bundle.locate import DEFAULT_RUN
from gptblock.cli.console import is_first_process, say
from gptblock.cli.options import Quiet
from gptblock.config import (
    PRESETS,
    Bias,
    Compile,
    Device,
    Dtype,
    FeedForwardKind,
    Init,
    LrSchedule,
    Norm,
    NormPlacement,
    Positions,
    TokenizerKind,
    TrainConfig,
    read_toml,
    train_config,
)
from gptblock.errors import MissingExtraError

if TYPE_CHECKING:
    from gptblock.cli.progress import TrainingDisplay
    from gptblock.training import Event
    from gptblock.training.tensorboard import TensorBoardLog

FIELDS = [field.name for field in dataclasses.fields(TrainConfig)]


def _field(help_text: str, panel: str) -> Any:
    """The option of a field. Not given is None, so that preset and file show through."""
    return typer.Option(help=help_text, rich_help_panel=panel, show_default=False)


_MODEL = "Model"
_STEPS = "Training"


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A text file, a folder of *.txt, or a named corpus: pydoc, tinyshakespeare.",
            show_default="pydoc",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = DEFAULT_RUN,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; may raise --max-iters.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    stop_after: Annotated[
        int | None,
        typer.Option(help="End this call after so many steps, to --resume later.", show_default=False),
    ] = None,
    shard: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: spread weights and moments over the processes.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Where the fields below start from.",
            metavar="|".join(PRESETS),
            show_default="lecture with a GPU, quick without",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of fields: over the preset, under the flags.", show_default=False),
    ] = None,
    block_size: Annotated[int | None, _field("The longest context, in tokens.", _MODEL)] = None,
    n_layer: Annotated[int | None, _field("Blocks.", _MODEL)] = None,
    n_head: Annotated[int | None, _field("Heads of a block; divides --n-embd.", _MODEL)] = None,
    n_embd: Annotated[int | None, _field("Width of the residual stream.", _MODEL)] = None,
    dropout: Annotated[float | None, _field("Share of activations dropped in training.", _MODEL)] = None,
    norm: Annotated[Norm | None, _field("How the residual stream is normalised.", _MODEL)] = None,
    norm_placement: Annotated[
        NormPlacement | None, _field("Before each part, or after its addition.", _MODEL)
    ] = None,
    norm_eps: Annotated[float | None, _field("What keeps a norm from dividing by zero.", _MODEL)] = None,
    feedforward: Annotated[FeedForwardKind | None, _field("The feed-forward's activation.", _MODEL)] = None,
    ff_ratio: Annotated[
        float | None, _field("Its width inside by --n-embd; 0: 4, or 8/3 for swiglu.", _MODEL)
    ] = None,
    positions: Annotated[Positions | None, _field("How a token knows its place.", _MODEL)] = None,
    qk_norm: Annotated[bool | None, _field("Normalise each head's queries and keys.", _MODEL)] = None,
    token_shift: Annotated[
        int | None, _field("Tokens before its own that the feed-forward reads a little of; 0: none.", _MODEL)
    ] = None,
    bias: Annotated[
        Bias | None, _field("lecture: all but q, k, v; gpt2: all but the head; none.", _MODEL)
    ] = None,
    tie_weights: Annotated[
        bool | None, _field("The head shares the token embedding's weights.", _MODEL)
    ] = None,
    init: Annotated[Init | None, _field("How the weights start.", _MODEL)] = None,
    tokenizer: Annotated[
        TokenizerKind | None, _field("One id a character, a byte, or a byte-pair token.", _MODEL)
    ] = None,
    bpe_vocab_size: Annotated[
        int | None, _field("Tokens for bpe at most, its 256 bytes among them.", _MODEL)
    ] = None,
    batch_size: Annotated[int | None, _field("Windows of text a step.", _STEPS)] = None,
    micro_batch_size: Annotated[
        int | None, _field("Of these, how many at once, to save memory; 0: all.", _STEPS)
    ] = None,
    max_iters: Annotated[int | None, _field("Steps.", _STEPS)] = None,
    lr_schedule: Annotated[
        LrSchedule | None, _field("How the rate falls: as a cosine, or in a line at the end.", _STEPS)
    ] = None,
    lr_decay_iters: Annotated[
        int | None, _field("Steps until the learning rate is at its lowest; 0: --max-iters.", _STEPS)
    ] = None,
    warmup_iters: Annotated[int | None, _field("Steps until it is at its highest.", _STEPS)] = None,
    cooldown: Annotated[
        float | None, _field("For wsd: the share of the steps in which the rate falls.", _STEPS)
    ] = None,
    learning_rate: Annotated[float | None, _field("Its highest.", _STEPS)] = None,
    min_lr: Annotated[float | None, _field("Its lowest, at the end.", _STEPS)] = None,
    beta1: Annotated[float | None, _field("AdamW's memory of the gradient.", _STEPS)] = None,
    beta2: Annotated[float | None, _field("AdamW's memory of its square.", _STEPS)] = None,
    weight_decay: Annotated[float | None, _field("AdamW's decay, of matrices only.", _STEPS)] = None,
    grad_clip: Annotated[float | None, _field("Largest norm of the gradient; 0: any.", _STEPS)] = None,
    eval_interval: Annotated[int | None, _field("Steps from one evaluation to the next.", _STEPS)] = None,
    eval_iters: Annotated[int | None, _field("Batches of each split in an evaluation.", _STEPS)] = None,
    sample_interval: Annotated[
        int | None, _field("Steps from one sample of its text to the next; 0: none.", _STEPS)
    ] = None,
    device: Annotated[Device | None, _field("auto takes a GPU where there is one.", _STEPS)] = None,
    dtype: Annotated[
        Dtype | None, _field("Of the products; auto: bf16 on a GPU that has it, else fp32.", _STEPS)
    ] = None,
    compile: Annotated[  # noqa: A002
        Compile | None, _field("By torch's compiler; auto: on a GPU, where it works.", _STEPS)
    ] = None,
    threads: Annotated[int | None, _field("CPU threads of one operator; 0: torch's choice.", _STEPS)] = None,
    seed: Annotated[int | None, _field("Of every random draw.", _STEPS)] = None,
    log: Annotated[
        Literal["tensorboard"] | None,
        typer.Option(help="Also write TensorBoard's event files, to RUN/tensorboard.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on a text.

    The defaults of the fields are those of the preset. Ctrl-C finishes the step, saves, and exits 130.
    """
    quiet = quiet or not is_first_process()
    given = {name: value for name, value in locals().items() if name in FIELDS and value is not None}
    for package in ("torch", "matplotlib", "tomli_w"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("gptblock train", package, "train")
    from gptblock.training import train as train_run
    from gptblock.training.folder import read_config

    file = read_toml(config) if config else {}
    if resume:
        start = train_config(preset).to_dict() if preset else read_config(out).to_dict()
        fields = TrainConfig.from_dict({**start, **file, **given})
    else:
        preset = preset or _default_preset({**file, **given}.get("device", "auto"))
        fields = train_config(preset, config, given)
    with ExitStack() as listening:
        listeners = list(_listeners(quiet, log))
        for listener in listeners:
            listening.enter_context(listener)

        def tell(event: Event) -> None:
            for listener in listeners:
                listener(event)

        result = train_run(
            fields,
            out,
            resume=resume,
            overwrite=overwrite,
            stop_after=stop_after,
            shard=shard,
            on_event=tell,
        )
    if not quiet:
        say(f"{out}: step {result.step}, best validation loss {result.best_val_loss:.4f}")
        place = shlex.quote(str(out))
        go_on = f"gptblock train --resume --out {place}, or " if result.step < fields.max_iters else ""
        say(f"next: {go_on}gptblock export {place}")


def _listeners(quiet: bool, log: str | None) -> Iterator[TrainingDisplay | TensorBoardLog]:
    """Who hears of the training's events; each is a context."""
    if not quiet:
        from gptblock.cli.progress import TrainingDisplay

        yield TrainingDisplay()
    if log:
        from gptblock.training.tensorboard import TensorBoardLog

        yield TensorBoardLog()


def _default_preset(device: str) -> str:
    import torch

    return "lecture" if device != "cpu" and torch.cuda.is_available() else "quick"
