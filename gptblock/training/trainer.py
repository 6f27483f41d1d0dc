"""What a training run holds while it runs, and what it does: advance, sample, evaluate, save."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gptblock
from gptblock.config import TrainConfig
from gptblock.errors import CorruptError, DivergedError, GptblockError
from gptblock.model import GPT, loss
from gptblock.training.batches import draw_batch
from gptblock.training.checkpoint import (
    MODEL,
    OPTIMIZER,
    SCHEMA_VERSION,
    Checkpoint,
    State,
    Which,
    checkpoint_folder,
    require_shapes,
    restore_weights,
    weights_of,
    write_checkpoint,
)
from gptblock.training.compute import autocast, forward_of
from gptblock.training.events import Evaluated, Event, Noted, Sampled, Saved, Stepped
from gptblock.training.folder import METRICS, SAMPLES, command_of
from gptblock.training.material import Material
from gptblock.training.metrics import Measurement, append_measurement, estimate_losses
from gptblock.training.optimizer import (
    make_optimizer,
    optimizer_shapes,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)
from gptblock.training.processes import Processes
from gptblock.training.samples import append_sample, draw_sample
from gptblock.training.schedule import learning_rate
from gptblock.training.sharding import shard

_BATCHES = "generator.batches"  # kept among the optimizer's tensors
_DROPOUT = "generator.dropout"


class Trainer:
    """A run at some step.

    The weights, dropout, the batches and the evaluations each draw from a generator of their own, all
    derived from `config.seed`. Dropout's is torch's global one, which a Trainer seeds: whoever makes one
    puts the caller's back.
    """

    def __init__(
        self,
        config: TrainConfig,
        material: Material,
        run: Path,
        emit: Callable[[Event], None],
        *,
        checkpoint: Checkpoint | None = None,
        processes: Processes = Processes(),
        is_sharded: bool = False,
    ) -> None:
        """At step 0, or where `checkpoint`, the run's last, is; CorruptError names what does not fit it."""
        self.config = config
        self.material = material
        self.run = run
        self.is_resumed = checkpoint is not None
        self.processes = processes
        self.emit = emit if processes.is_first else _nobody
        self.step = 0
        self.evaluated_step = -1
        self.train_loss = self.val_loss = math.inf
        self.best_step = -1
        self.best_val_loss = math.inf
        self._seconds = 0.0  # spent on steps
        self._mark = (0, 0.0)  # step and seconds from which the speed is measured
        self._pending: tuple[float, Tensor] | None = (
            None  # rate and loss of the latest step, not yet reported
        )
        seeds = np.random.SeedSequence(config.seed).generate_state(4, np.uint64)
        weights, dropout, batches, self._evaluation_seed = (int(seed) for seed in seeds)
        torch.manual_seed(weights)
        # Drawn on the CPU, so that a seed means the same weights on every device.
        self.model = GPT(config.model(material.tokenizer.vocab_size)).to(config.device)
        self._batches = torch.Generator().manual_seed(batches)
        if checkpoint:
            restore_weights(self.model, checkpoint.model, checkpoint_folder(run, "last") / MODEL)
        if is_sharded:
            shard(self.model, config.device)
        self._forward = forward_of(self._together(is_sharded), config, lambda text: self.emit(Noted(text)))
        self._optimizer = make_optimizer(self.model, config)
        torch.manual_seed(dropout)
        if checkpoint:
            self._restore(checkpoint)
        if processes.rank:  # other masks for other windows
            own = np.random.SeedSequence([config.seed, processes.rank, self.step])
            torch.manual_seed(int(own.generate_state(1, np.uint64)[0]))

    def _together(self, is_sharded: bool) -> nn.Module:
        """The model, averaging its gradients over all processes."""
        if self.processes.size == 1 or is_sharded:
            return self.model
        return DistributedDataParallel(self.model)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Take all but the weights from `checkpoint`."""
        folder = checkpoint_folder(self.run, "last")
        state, tensors = checkpoint.state, dict(checkpoint.optimizer)
        try:
            self._batches.set_state(tensors.pop(_BATCHES))
            _set_dropout_state(self.config.device, tensors.pop(_DROPOUT))
        except (KeyError, RuntimeError, TypeError) as error:
            raise CorruptError(f"{folder / OPTIMIZER} lacks generators that fit the run: {error}") from None
        if state["step"] > 0:
            require_shapes(tensors, optimizer_shapes(self.model), folder / OPTIMIZER)
            restore_optimizer(self.model, self._optimizer, tensors)
        self.step = state["step"]
        self.evaluated_step = state["evaluated_step"]
        self.train_loss, self.val_loss = state["train_loss"], state["val_loss"]
        self.best_step, self.best_val_loss = state["best_step"], state["best_val_loss"]
        self._seconds = state["seconds"]
        self._mark = (self.step, self._seconds)

    def advance(self) -> None:
        """Make one step: forward, backward, clip, update."""
        started = time.perf_counter()
        rate = learning_rate(self.step, self.config)
        set_learning_rate(self._optimizer, rate)
        drawn = draw_batch(self.material.train, self.config.batch_size, self._batches)
        inputs, targets = map(self.processes.share, drawn)  # (B, T) each, of B / size rows
        self._optimizer.zero_grad()
        batch_loss = self.processes.sum(self._backward(inputs, targets))
        if self.config.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self._optimizer.step()
        # Reading a loss waits for it. Reading that of the step before leaves a GPU this one to work on.
        self._report()
        self._pending = rate, batch_loss
        self.step += 1
        self._seconds += time.perf_counter() - started

    def _backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Gradients of the whole batch's mean loss; returns what this process's rows (B, T) add to it."""
        batch, micro = self.config.batch_size, self.config.micro_batch_size
        parts = -(-self.processes.largest_share(batch) // micro) if micro else 1
        total = torch.zeros((), device=inputs.device)
        for x, y in zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True):
            with autocast(self.config):
                logits = self._forward(x)  # (rows, T, vocab_size)
            # The process that has least may have no row left for the last part.
            part = loss(logits.float(), y) * (len(x) / batch) if len(x) else logits.float().sum()
            # Gradients are averaged over the processes, and are to be summed.
            (part * self.processes.size).backward()  # type: ignore[no-untyped-call]
            total += part.detach()
        return total

    def sample(self) -> None:
        """Let the model write, if this step is a `sample_interval`th one. No step changes by it.

        Raises DivergedError where it cannot, for its logits are no numbers.
        """
        if not self.config.sample_interval or self.step % self.config.sample_interval:
            return
        if not self.processes.is_first:
            return
        self._report()
        try:
            text = draw_sample(self.model, self.material.tokenizer, self.config.seed)
        except GptblockError:
            self._require_finite(math.nan)
            raise
        append_sample(self.run / SAMPLES, self.step, text)
        self.emit(Sampled(self.step, text))

    @property
    def is_due(self) -> bool:
        """Whether this step is to be evaluated and has not been: each `eval_interval`th, and the last."""
        on_grid = self.step % self.config.eval_interval == 0 or self.step == self.config.max_iters
        return on_grid and self.evaluated_step != self.step

    def evaluate(self) -> None:
        """Estimate both losses, add a line to the metrics, and save: `best` if it is the best, then `last`.

        Draws nothing that a later step draws from: how often it is called changes no step. The untrained
        weights of step 0 are the best only until others are, and never saved as such. Raises DivergedError,
        before anything is written, where a loss is not finite.
        """
        measurement = self._measure()
        is_first = self.best_step <= 0
        if is_best := is_first or self.val_loss < self.best_val_loss:
            self.best_step, self.best_val_loss = self.step, self.val_loss
        if self.processes.is_first:
            append_measurement(self.run / METRICS, measurement)
        self.emit(Evaluated(measurement, is_best))
        if is_best and self.step > 0:
            self.save("best")
        self.save("last")

    def pause(self) -> None:
        """Save `last` at once, then do what must be for the run to go on as if it had not stopped here.

        Where there is no `best` yet, these weights are it until the next evaluation, so that what was
        trained can be exported. `last` knows nothing of that.
        """
        if self.evaluated_step >= 0:
            self.save("last")
        if self.is_due:
            self.evaluate()
        elif self.best_step <= 0:
            measurement = self._measure()
            self.best_step, self.best_val_loss = self.step, self.val_loss
            self.emit(Evaluated(measurement, is_best=True))
            self.save("best")

    def _measure(self) -> Measurement:
        """Both losses of now. Raises DivergedError where one is not finite."""
        self._report()
        splits = {"train": self.material.train, "val": self.material.val}
        losses = estimate_losses(self.model, splits, self.config, self._evaluation_seed, self.processes)
        for value in losses.values():
            self._require_finite(value)
        self.evaluated_step, self.train_loss, self.val_loss = self.step, losses["train"], losses["val"]
        return Measurement(
            step=self.step,
            train_loss=self.train_loss,
            val_loss=self.val_loss,
            lr=learning_rate(self.step, self.config),
            tokens_per_second=self._speed(),
            seconds=self._seconds,
        )

    def save(self, which: Which) -> None:
        """Write a checkpoint of this moment. Raises DivergedError where the latest loss is not finite."""
        self._report()
        generators = {_BATCHES: self._batches.get_state(), _DROPOUT: _dropout_state(self.config.device)}
        tensors = {**optimizer_tensors(self.model, self._optimizer), **generators}
        checkpoint = Checkpoint(self._state(), weights_of(self.model), tensors)
        folder = checkpoint_folder(self.run, which)
        if self.processes.is_first:
            write_checkpoint(folder, checkpoint)
        self.emit(Saved(self.step, folder))

    def _report(self) -> None:
        """Tell of the latest step, unless that is done. Raises DivergedError where its loss is not finite."""
        if self._pending:
            (rate, batch_loss), self._pending = self._pending, None
            value = batch_loss.item()
            self._require_finite(value)
            self.emit(Stepped(self.step, value, rate))

    def _require_finite(self, value: float) -> None:
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value} at step {self.step}: training has diverged. Begin anew (--overwrite, "
                f"or another --out) with a lower "
                f"--learning-rate (it was {self.config.learning_rate}), a longer --warmup-iters (it was "
                f"{self.config.warmup_iters}), or --grad-clip 1 (it was {self.config.grad_clip}). "
                f"The checkpoints of before are in {self.run}"
            )

    def _speed(self) -> float:
        """Tokens per second since the mark, which moves here."""
        (step, seconds), self._mark = self._mark, (self.step, self._seconds)
        tokens = (self.step - step) * self.config.batch_size * self.config.block_size
        return tokens / (self._seconds - seconds) if tokens else 0.0

    def _state(self) -> State:
        return State(
            schema_version=SCHEMA_VERSION,
            step=self.step,
            train_loss=self.train_loss,
            val_loss=self.val_loss,
            evaluated_step=self.evaluated_step,
            best_val_loss=self.best_val_loss,
            best_step=self.best_step,
            seconds=self._seconds,
            data=self.config.data,
            data_sha256=self.material.sha256,
            command=command_of(self.config),
            config=self.config.to_dict(),
            tokenizer=self.material.tokenizer.to_dict(),
            versions={
                "gptblock": gptblock.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            },
        )


def _nobody(_: Event) -> None:
    """Hears of a process that is not the first."""


def _dropout_state(device: str) -> Tensor:
    """The state of the generator that dropout draws from on `device`."""
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def _set_dropout_state(device: str, state: Tensor) -> None:
    if device == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)
