"""The learning rate of each step: a linear warm-up, then down to a floor, by a cosine or at the end."""

from __future__ import annotations

import math

from gptblock.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """The learning rate of step `step`, counted from 0. `config` is a resolved one.

    It is above zero at step 0, `learning_rate` at step `warmup_iters`, and `min_lr` from step
    `lr_decay_iters` on. The warm-up may be 0 steps long, or longer than the run. Between, "cosine" falls by
    half a cosine (Loshchilov and Hutter 2017, section 3, without restarts); "wsd", warm-up, stable, decay,
    stays high and falls in a line over the last `cooldown` of lr_decay_iters (Hu et al. 2024, section 4).
    """
    if step <= config.warmup_iters:
        return config.learning_rate * (step + 1) / (config.warmup_iters + 1)
    if step >= config.lr_decay_iters:
        return config.min_lr
    if config.lr_schedule == "cosine":
        done = (step - config.warmup_iters) / (config.lr_decay_iters - config.warmup_iters)
        share = (1 + math.cos(math.pi * done)) / 2
    else:
        share = min(1.0, (config.lr_decay_iters - step) / max(1.0, config.cooldown * config.lr_decay_iters))
    return config.min_lr + (config.learning_rate - config.min_lr) * share
