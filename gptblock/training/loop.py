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
from gptblock.errors import ConfigError, CorpusError, InterruptedRunError
from gptblock.text.char import CharTokenizer
from gptblock.text.corpus import load_corpus, split
from gptblock.text.kinds import tokenizer_from_dict, train_tokenizer
from gptblock.text.tokenizer import Tokenizer
from gptblock.training.batches import windows_of
from gptblock.training.checkpoint import State, read_checkpoint
from gptblock.training.compute import resolve_compute
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
from gptblock.training.processes import Processes, joined
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
    shard: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> TrainResult:
    """Train as `config` says and leave a run directory at `out`.

    Evaluates and saves every `eval_interval` steps from step 0 on, and at the end. `stop_after` ends this
    call after so many steps, and `resume` goes on from there exactly as if it had never stopped: the same
    weights, metrics and best checkpoint. It may raise `max_iters`, follows a text that moved, and refuses
    any other change by name. `lr_decay_iters = 0`, `threads = 0` and "auto" then mean the run's own.
    `overwrite` replaces a run that is there. `on_event` hears what happens.

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
        material = _material(config, saved.state if saved else None)
        devices = [torch.cuda.current_device()] if config.device == "cuda" else []
        with torch.random.fork_rng(devices=devices), _threads(config.threads):
            trainer = Trainer(
                config, material, out, emit, checkpoint=saved, processes=processes, is_sharded=shard
            )
            processes.by_first(lambda: _open_folder(trainer))
            stop_at = min(config.max_iters, trainer.step + (stop_after or config.max_iters))
            trainer.emit(_started(trainer, stop_at))
            is_interrupted = _run(trainer, stop_at)
    if processes.is_first:
        title = f"Training on {config.data}"
        write_file(out / PICTURE, draw_losses(read_measurements(out / METRICS), title))
    if is_interrupted:
        raise _interrupted(trainer)
    return TrainResult(trainer.step, trainer.train_loss, trainer.val_loss, trainer.best_val_loss, out)


@contextmanager
def _threads(count: int) -> Iterator[None]:
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
            while trainer.step < stop_at and not trainer.processes.any(requested.is_set()):
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
    unsaid = {"lr_decay_iters": 0, "threads": 0, "device": "auto", "dtype": "auto", "compile": "auto"}
    own = {name: getattr(before, name) for name, value in unsaid.items() if getattr(config, name) == value}
    config = config.replace(**own)
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


def _material(config: TrainConfig, state: State | None) -> Material:
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


def _require_processes(config: TrainConfig, processes: Processes, is_sharded: bool) -> None:
    if is_sharded and processes.size == 1:
        raise ConfigError(
            "--shard spreads a model over several processes, and this is one: start it with "
            "torchrun --nproc-per-node 2 -m gptblock train --shard ..."
        )
    if config.batch_size < processes.size:
        raise ConfigError(
            f"batch_size must be at least the number of processes, so that each has a row: got "
            f"{config.batch_size}, and there are {processes.size} processes"
        )


def _open_folder(trainer: Trainer) -> None:
    """Bring the run's folder to the step that the trainer starts from."""
    if trainer.is_resumed:
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
