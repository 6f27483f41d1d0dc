"""The training run: from a configuration to a run directory, at once or in several goes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from gptblock.bundle.store import write_file
from gptblock.config import TrainConfig
from gptblock.errors import ConfigError, InterruptedRunError
from gptblock.training.checkpoint import State, read_checkpoint
from gptblock.training.compute import resolve_compute, torch_threads
from gptblock.training.events import Event, Noted, Started, Stopping
from gptblock.training.folder import (
    METRICS,
    PICTURE,
    SAMPLES,
    make_folder,
    require_free,
    start_run,
    write_config,
)
from gptblock.training.interrupt import stop_request
from gptblock.training.lock import locked
from gptblock.training.material import prepare
from gptblock.training.metrics import read_measurements, rewind_measurements
from gptblock.training.processes import Processes, joined
from gptblock.training.samples import rewind_samples
from gptblock.training.trainer import Trainer


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
    shard: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> TrainResult:
    """Train as `config` says and leave a run directory at `out`.

    Evaluates and saves every `eval_interval` steps from step 0 on, and at the end. `stop_after` ends this
    call after so many steps, and `resume` goes on from there exactly as if it had never stopped: the same
    weights, metrics and best checkpoint. It may raise `max_iters`, follows a text that moved, and refuses
    any other change by name. `lr_decay_iters = 0`, `threads = 0` and "auto" then mean the run's own;
    `sample_interval` and `micro_batch_size` are free. `overwrite` replaces a run that is there. `on_event`
    hears what happens.

    In several processes, which torchrun starts, each computes its share of every batch, and the first alone
    writes and is heard of; a run may go on with another number of them. `shard` spreads weights and moments
    over them too, for a model too large for one device.

    On SIGINT or SIGTERM the step at hand is finished and saved. torch's global generator, its
    threads and the signal handlers are as before afterwards.

    Raises InterruptedRunError after such a stop; DivergedError where a loss is no finite number, with the
    checkpoints of before in place; RunExistsError, ConfigError or CorpusError before anything is written;
    NotFoundError or CorruptError where there is nothing to resume; UnavailableError where a device, dtype or
    compiler is asked for by name and not here; LostProcessError where another of the processes has ended.
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
    config = resolve_compute(config).resolved()
    with joined(config.device) as processes:
        _require_processes(config, processes, is_sharded=shard)
        if not saved:
            processes.by_first(lambda: require_free(out, overwrite))
        material = processes.in_turn(lambda: prepare(config, saved.state if saved else None, emit))
        devices = [torch.cuda.current_device()] if config.device == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch_threads(config.threads), ExitStack() as held:
            trainer = Trainer(
                config, material, out, emit, checkpoint=saved, processes=processes, is_sharded=shard
            )
            processes.by_first(lambda: _open_folder(trainer, held))
            stop_at = min(config.max_iters, trainer.step + (stop_after or config.max_iters))
            trainer.emit(_started(trainer, stop_at))
            _tell_of_the_rate(trainer)
            is_interrupted = _run(trainer, stop_at)
    if processes.is_first:
        title = f"Training on {config.data}"
        write_file(out / PICTURE, draw_losses(read_measurements(out / METRICS), title, config))
    if is_interrupted:
        raise _interrupted(trainer)
    return TrainResult(trainer.step, trainer.train_loss, trainer.val_loss, trainer.best_val_loss, out)


def _run(trainer: Trainer, stop_at: int) -> bool:
    """Step, evaluate and save up to step `stop_at`. Returns whether it was asked to stop before."""
    try:
        with stop_request() as requested:
            while trainer.step < stop_at and not trainer.processes.any(requested.is_set()):
                if trainer.is_due:
                    trainer.evaluate()
                trainer.advance()
                trainer.sample()
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
    unsaid = {"lr_decay_iters": 0, "threads": 0, "device": "auto", "dtype": "auto", "compile": "auto"}
    own = {name: getattr(before, name) for name, value in unsaid.items() if getattr(config, name) == value}
    config = config.replace(**own)
    was, now = before.to_dict(), config.to_dict()
    free = ("data", "max_iters", "sample_interval", "micro_batch_size")
    changed = [name for name in was if was[name] != now[name] and name not in free]
    if config.max_iters < before.max_iters:
        changed.append("max_iters")
    if changed == ["max_iters"]:
        raise ConfigError(
            f"--resume may raise max_iters and not lower it: got {config.max_iters}, and the run has "
            f"{before.max_iters}. --stop-after N ends this call after N steps; --overwrite begins anew"
        )
    if config.max_iters > before.max_iters and not before.min_lr:
        raise ConfigError(
            f"the run's learning rate is 0 from step {before.lr_decay_iters} on (its min_lr), so that more "
            f"steps would change nothing: got max_iters = {config.max_iters}. Train anew with that, and "
            f"another --out"
        )
    if changed:
        changes = ", ".join(f"{name} ({was[name]} in the run, {now[name]} given)" for name in changed)
        raise ConfigError(
            f"--resume goes on with the run as it is; it may raise max_iters and change nothing else: "
            f"got another {changes}"
        )
    return config


def _require_processes(config: TrainConfig, processes: Processes, is_sharded: bool) -> None:
    if is_sharded and processes.size == 1:
        raise ConfigError(
            "--shard spreads a model over several processes, and this is one: start it with "
            "torchrun --nproc-per-node 2 -m gptblock train --shard ..."
        )
    if is_sharded and config.sample_interval:
        raise ConfigError(
            f"a model spread over processes writes no samples: got --shard and "
            f"sample_interval = {config.sample_interval}; leave --shard out, or give --sample-interval 0"
        )
    if config.batch_size < processes.size:
        raise ConfigError(
            f"batch_size must be at least the number of processes, so that each has a row: got "
            f"{config.batch_size}, and there are {processes.size} processes"
        )


def _open_folder(trainer: Trainer, held: ExitStack) -> None:
    """Bring the run's folder to the step that the trainer starts from, and keep others out meanwhile."""
    make_folder(trainer.run)
    held.enter_context(locked(trainer.run))
    if trainer.is_resumed:
        rewind_measurements(trainer.run / METRICS, trainer.step)
        rewind_samples(trainer.run / SAMPLES, trainer.step)
        write_config(trainer.run, trainer.config)
    else:
        start_run(trainer.run, trainer.config, trainer.material.tokenizer)


def _tell_of_the_rate(trainer: Trainer) -> None:
    """A schedule has the length that it began with: what comes after it has the lowest rate."""
    config = trainer.config
    if trainer.is_resumed and config.lr_decay_iters < config.max_iters:
        text = f"from step {config.lr_decay_iters} on the learning rate is {config.min_lr:g}, its min_lr"
        trainer.emit(Noted(text))


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
