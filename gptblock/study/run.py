"""One run of a study: a model trained as in the lecture, both losses measured on the way."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW

from gptblock.config import ModelConfig, TrainConfig, train_config
from gptblock.model import GPT, count_parameters, loss
from gptblock.training.batches import Windows, draw_batch
from gptblock.training.compute import torch_threads
from gptblock.training.material import Material
from gptblock.training.metrics import estimate_losses
from gptblock.training.optimizer import set_learning_rate
from gptblock.training.schedule import learning_rate

# The lecture's sixth part, to the letter: torch's own initialisation, and AdamW as torch has it, without
# clipping. One thread, so that every run is the same whatever runs beside it.
LECTURE = train_config("part6").replace(
    init="torch", beta2=0.999, weight_decay=0.01, grad_clip=0.0, eval_iters=200, device="cpu", threads=1
)


def exercise(steps: int) -> TrainConfig:
    """The same for an exercise, which needs fewer steps and compares arms on the same windows."""
    return LECTURE.replace(max_iters=steps, eval_interval=steps // 10, eval_iters=80)


@dataclass(frozen=True)
class Arm:
    """One of the things that a study compares: a model, and how it is trained.

    `build` makes the model from its shape; a function of a module, so that other processes find it. `panels`
    are where the picture shows it.
    """

    name: str
    config: TrainConfig
    build: Callable[[ModelConfig], nn.Module] = GPT
    panels: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Point:
    """Both losses (nats per token) after `step` steps, and the gradient's norm at the token embedding."""

    step: int
    train_loss: float
    val_loss: float
    gradient: float


@dataclass(frozen=True)
class Run:
    """What an arm did with a seed. One that `diverged_at` some step has the points before, and no later."""

    arm: str
    seed: int
    parameters: int
    vocab_size: int
    curve: tuple[Point, ...]
    diverged_at: int | None = None
    cpu_seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def val_loss(self) -> float:
        """At the end; of a run that diverged, that of a guess among all tokens."""
        return self.curve[-1].val_loss if self.diverged_at is None else math.log(self.vocab_size)

    @property
    def train_loss(self) -> float:
        """At the end, likewise."""
        return self.curve[-1].train_loss if self.diverged_at is None else math.log(self.vocab_size)


def train_arm(
    arm: Arm, seed: int, material: Material, on_step: Callable[[int], None] = lambda _: None
) -> Run:
    """Train `arm` with `seed`; all arms see the same batches, and are measured on the same windows.

    The weights, the batches and the measured windows are each drawn by a generator of their own. torch's
    global one and its threads are as before afterwards. `on_step` may raise, to end it.
    """
    config = arm.config
    weights, batches, evaluation = (
        int(part) for part in np.random.SeedSequence(seed).generate_state(3, np.uint64)
    )
    started = time.process_time()
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(weights)
        model = arm.build(config.model(material.tokenizer.vocab_size))
        optimizer = AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            fused=True,
        )
        generator = torch.Generator().manual_seed(batches)
        curve: list[Point] = []
        diverged_at = None
        for step in range(config.max_iters + 1):
            on_step(step)
            if step % config.eval_interval == 0 or step == config.max_iters:
                point = _measure(model, step, material, config, evaluation)
                if not all(map(math.isfinite, dataclasses.astuple(point))):
                    diverged_at = step
                    break
                curve.append(point)
            if step < config.max_iters:
                set_learning_rate(optimizer, learning_rate(step, config))
                inputs, targets = draw_batch(material.train, config.batch_size, generator)  # (B, T)
                optimizer.zero_grad()
                loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return Run(
        arm=arm.name,
        seed=seed,
        parameters=count_parameters(model),
        vocab_size=material.tokenizer.vocab_size,
        curve=tuple(curve),
        diverged_at=diverged_at,
        cpu_seconds=time.process_time() - started,
    )


def _measure(model: nn.Module, step: int, material: Material, config: TrainConfig, seed: int) -> Point:
    splits = {"train": material.train, "val": material.val}
    losses = estimate_losses(model, splits, config, seed)
    return Point(step, losses["train"], losses["val"], _embedding_gradient(model, material.train, seed))


def _embedding_gradient(model: nn.Module, windows: Windows, seed: int) -> float:
    """The norm of the loss's gradient at the token embedding, on 256 windows, the same each time.

    The embedding is what lies the furthest from the loss: what does not reach it has been lost on the way.
    """
    embedding = next(module for module in model.modules() if isinstance(module, nn.Embedding))
    inputs, targets = draw_batch(windows, 256, torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad(loss(model(inputs), targets), [embedding.weight])
    return float(gradient.norm())
