from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptblock.config import TrainConfig
from gptblock.training.schedule import learning_rate


def schedule(warmup: int, decay: int, max_iters: int = 100) -> TrainConfig:
    return TrainConfig(
        learning_rate=1.0, min_lr=0.1, warmup_iters=warmup, lr_decay_iters=decay, max_iters=max_iters
    ).resolved()


@pytest.mark.parametrize(
    ("warmup", "decay", "step", "expected"),
    [
        (4, 100, 0, 1 / 5),  # never zero
        (4, 100, 3, 4 / 5),
        (4, 100, 4, 1.0),
        (4, 100, 52, 0.55),  # half way down the cosine
        (4, 100, 100, 0.1),
        (4, 100, 10_000, 0.1),
        (0, 100, 0, 1.0),
        (0, 100, 25, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),
        (0, 0, 100, 0.1),  # decay as long as the run
        (100, 100, 0, 1 / 101),
        (100, 100, 100, 1.0),
        (100, 100, 101, 0.1),
        (200, 100, 99, 100 / 201),  # a warm-up longer than the run
        (200, 50, 99, 100 / 201),
        (0, 1, 0, 1.0),
        (0, 1, 1, 0.1),
    ],
)
def test_rate(warmup: int, decay: int, step: int, expected: float) -> None:
    assert learning_rate(step, schedule(warmup, decay)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("warmup", "cooldown", "step", "expected"),
    [
        (4, 0.5, 0, 1 / 5),
        (4, 0.5, 4, 1.0),
        (4, 0.5, 50, 1.0),  # until the last half
        (4, 0.5, 75, 0.55),  # half way down the line
        (4, 0.5, 99, 0.1 + 0.9 / 50),
        (4, 0.5, 100, 0.1),
        (4, 0.0, 99, 1.0),  # no cool-down
        (4, 0.0, 100, 0.1),
        (4, 1.0, 5, 0.1 + 0.9 * 95 / 100),  # nothing but
        (60, 0.5, 59, 60 / 61),
        (60, 0.5, 60, 1.0),  # the warm-up first
        (60, 0.5, 61, 0.1 + 0.9 * 39 / 50),
    ],
)
def test_rate_that_stays_and_then_falls_in_a_line(
    warmup: int, cooldown: float, step: int, expected: float
) -> None:
    config = schedule(warmup, 100).replace(lr_schedule="wsd", cooldown=cooldown)
    assert learning_rate(step, config) == pytest.approx(expected, rel=1e-12)


def test_constant_where_the_floor_is_the_rate() -> None:
    config = TrainConfig(learning_rate=0.5, min_lr=0.5, warmup_iters=0, max_iters=30).resolved()
    assert {learning_rate(step, config) for step in range(40)} == {0.5}


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 120))
def test_it_rises_then_falls_between_the_bounds(warmup: int, decay: int, step: int) -> None:
    config = schedule(warmup, decay)
    rate, following = learning_rate(step, config), learning_rate(step + 1, config)
    assert 0 < rate <= 1
    assert following > rate if step < warmup else 0.1 <= following <= rate
