"""The learning rate of each step: a linear warm-up, then a cosine down to a floor."""

from __future__ import annotations

import math

from gptblock.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """The learning rate of step `step`, counted from 0. `config` is a resolved one.

    It is above zero at step 0, `learning_rate` at step `warmup_iters`, and `min_lr` from step
    `lr_decay_iters` on. The warm-up may be 0 steps long, or longer than the run. (Cosine without
    restarts: Loshchilov and Hutter 2017, section 3.)
    """
    if step <= config.warmup_iters:
        return config.learning_rate * (step + 1) / (config.warmup_iters + 1)
    if step >= config.lr_decay_iters:
        return config.min_lr
    done = (step - config.warmup_iters) / (config.lr_decay_iters - config.warmup_iters)
    return config.min_lr + (config.learning_rate - config.min_lr) * (1 + math.cos(math.pi * done)) / 2
