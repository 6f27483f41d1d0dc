"""The training run: from a configuration to a run directory, at once or in several goes."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from gptblock.bundle.store import write_file
from gptblock.config import TrainConfig
from gptblock.errors import ConfigError, CorpusError, InterruptedRunError, UnavailableError
from gptblock.text.char import CharTokenizer
from gptblock.text.corpus import load_corpus, split
from gptblock.text.kinds import tokenizer_from_dict, train_tokenizer
from gptblock.text.tokenizer import Tokenizer
from gptblock.training.batches import windows_of
from gptblock.training.checkpoint import Checkpoint, State, read_checkpoint
from gptblock.training.events import Event, Started, Stopping
from gptblock.training.folder import (
    METRICS,
    PICTURE,
    require_free,
    start_run,
    write_config,
)
from gptblock.training.interrupt import stop_request
from gptblock.training.metrics import read_measurements, rewind_measurements
from gptblock.training.trainer import Material, Trainer


@dataclass(frozen=True)
class TrainResult:
    """Where a run stands: steps done, losses (nats per token) of the latest evaluation and the best."""

    step: int
    train_loss: float
    val_loss: float
    best_val_loss: float
    run: Path


def train(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    stop_after: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> TrainResult:
    """Train as `config` says and leave a run directory at `out`.

    Evaluates and saves every `eval_interval` steps from step 0 on, and at the end. `stop_after` ends this
    call after so many steps, and `resume` goes on from there exactly as if it had never stopped: the same
    weights, metrics and best checkpoint. It may raise `max_iters`, follows a text that moved, and refuses
    any other change by name. `lr_decay_iters = 0`, `threads = 0` and `device = "auto"` then mean the run's
    own. `overwrite` replaces a run that is there. `on_event` hears what happens.

    On SIGINT or SIGTERM the step at hand is finished and saved. torch's global generator, its
    threads and the signal handlers are as before afterwards.

    Raises InterruptedRunError after such a stop; DivergedError where a loss is no finite number, with the
    checkpoints of before in place; RunExistsError, ConfigError or CorpusError before anything is written;
    NotFoundError or CorruptError where there is nothing to resume; UnavailableError without a CUDA device
    where "cuda" is asked for.
    """
    # A missing matplotlib should be known now, not when the training is over.
    from gptblock.training.plot import draw_losses

    emit = on_event or (lambda _: None)
    if resume and overwrite:
        raise ConfigError("--resume goes on with a run and --overwrite removes it: give one of them")
    if stop_after is not None and stop_after < 1:
        raise ConfigError(f"stop_after must be >= 1: got {stop_after}")
    saved = read_checkpoint(out, "last") if resume else None
    if saved:
        config = _continued(config, saved.state)
    else:
        require_free(out, overwrite)
    config = config.replace(
        device=_available(config.device), threads=config.threads or torch.get_num_threads()
    ).resolved()
    material = load_material(config, saved.state if saved else None)

    devices = [torch.cuda.current_device()] if config.device == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch_threads(config.threads):
        trainer = Trainer(config, material, out, emit)
        _open_run(trainer, saved)
        stop_at = min(config.max_iters, trainer.step + (stop_after or config.max_iters))
        emit(_started(trainer, stop_at))
        is_interrupted = _run(trainer, stop_at)
    write_file(out / PICTURE, draw_losses(read_measurements(out / METRICS), f"Training on {config.data}"))
    if is_interrupted:
        raise _interrupted(trainer)
    return TrainResult(trainer.step, trainer.train_loss, trainer.val_loss, trainer.best_val_loss, out)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch with `count` threads an operator, and as it was afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(trainer: Trainer, stop_at: int) -> bool:
    """Step, evaluate and save up to step `stop_at`. Returns whether it was asked to stop before."""
    try:
        with stop_request() as requested:
            while trainer.step < stop_at and not requested.is_set():
                if trainer.is_due:
                    trainer.evaluate()
                trainer.advance()
            is_interrupted = trainer.step < stop_at
            if is_interrupted:
                trainer.emit(Stopping(trainer.step))
            if trainer.is_due and not is_interrupted:
                trainer.evaluate()
            elif trainer.evaluated_step != trainer.step:
                trainer.pause()
    except KeyboardInterrupt:  # the second one
        raise _interrupted(trainer) from None
    return is_interrupted


def _continued(config: TrainConfig, state: State) -> TrainConfig:
    """The configuration of a run that goes on. Raises ConfigError naming every field that may not change."""
    before = TrainConfig.from_dict(state["config"])
    if config.lr_decay_iters == 0:
        config = config.replace(lr_decay_iters=before.lr_decay_iters)
    if config.device == "auto":
        config = config.replace(device=before.device)
    if config.threads == 0:
        config = config.replace(threads=before.threads)
    was, now = before.to_dict(), config.to_dict()
    changed = [name for name in was if was[name] != now[name] and name not in ("data", "max_iters")]
    if config.max_iters < before.max_iters:
        changed.append("max_iters")
    if changed == ["max_iters"]:
        raise ConfigError(
            f"--resume may raise max_iters and not lower it: got {config.max_iters}, and the run has "
            f"{before.max_iters}. --stop-after N ends this call after N steps; --overwrite begins anew"
        )
    if changed:
        changes = ", ".join(f"{name} ({was[name]} in the run, {now[name]} given)" for name in changed)
        raise ConfigError(
            f"--resume goes on with the run as it is; it may raise max_iters and change nothing else: "
            f"got another {changes}"
        )
    return config


def _available(device: str) -> str:
    """The device that "auto" means here, or the one asked for, if it is there."""
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if has_cuda else "cpu"
    if device == "cuda" and not has_cuda:
        raise UnavailableError(
            f"device cuda was asked for, and torch {torch.__version__} finds no CUDA device here: "
            f"use --device cpu, or a torch built for CUDA and its driver"
        )
    return device


def load_material(config: TrainConfig, state: State | None = None) -> Material:
    """The text of the run; `state` is the one of the run that goes on, whose text it must be."""
    text = load_corpus(config.data).text
    sha256 = hashlib.sha256(text.encode("utf-8")).hexdigest()
    if state:
        # The run's own: another version of a library might learn another from the same text.
        tokenizer = tokenizer_from_dict(state["tokenizer"])
        if state["data_sha256"] != sha256:
            raise _other_corpus(config.data, text, tokenizer, state)
    else:
        tokenizer = train_tokenizer(config.tokenizer, text, config.bpe_vocab_size)
    train_ids, val_ids = split(tokenizer.encode(text), config.block_size)
    device = torch.device(config.device)
    return Material(
        tokenizer,
        windows_of(train_ids, config.block_size, device),
        windows_of(val_ids, config.block_size, device),
        sha256,
    )


def _other_corpus(data: str, text: str, tokenizer: Tokenizer, state: State) -> CorpusError:
    known = tokenizer.vocab if isinstance(tokenizer, CharTokenizer) else text
    new = [f"{symbol!a} (U+{ord(symbol):04X})" for symbol in sorted(set(text) - set(known))]
    if new:
        more = f" and {len(new) - 5} more" if len(new) > 5 else ""
        return CorpusError(
            f"{data} has characters that the run to resume never saw: {', '.join(new[:5])}{more}; "
            f"it was trained on {state['data']}. Give that text, or train anew with another --out"
        )
    return CorpusError(
        f"{data} is not the text of the run to resume, which was trained on {state['data']} "
        f"(SHA-256 {state['data_sha256']}). Give that text, or train anew with another --out"
    )


def _open_run(trainer: Trainer, saved: Checkpoint | None) -> None:
    """Bring the run's folder and the trainer to the step they start from."""
    if saved:
        trainer.restore(saved)
        rewind_measurements(trainer.run / METRICS, trainer.step)
        write_config(trainer.run, trainer.config)
    else:
        start_run(trainer.run, trainer.config, trainer.material.tokenizer)


def _started(trainer: Trainer, stop_at: int) -> Started:
    config = trainer.config
    return Started(
        run=trainer.run,
        device=config.device,
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        vocab_size=trainer.material.tokenizer.vocab_size,
        tokens=len(trainer.material.train) + config.block_size,
        tokens_per_step=config.batch_size * config.block_size,
        step=trainer.step,
        stop_at=stop_at,
        max_iters=config.max_iters,
    )


def _interrupted(trainer: Trainer) -> InterruptedRunError:
    return InterruptedRunError(
        f"stopped at step {trainer.step} of {trainer.config.max_iters}; what is saved in {trainer.run} "
        f"goes on with: gptblock train --resume --out {shlex.quote(str(trainer.run))}"
    )
