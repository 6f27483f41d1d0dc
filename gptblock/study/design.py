"""What a study is: arms, what is expected of them, and who judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gptblock.config import TrainConfig
from gptblock.study.results import Results
from gptblock.study.run import Arm

SHORTER = 10  # --quick makes the steps so many times fewer


@dataclass(frozen=True)
class Table:
    """Rows of text under columns; the first column holds names, the others numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """Whether what was expected showed, in one sentence made of the results, and what else they tell."""

    showed: bool
    sentence: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """An experiment of the lecture. `is_lectures` on: the lecture's own text and length, so that its numbers
    may be compared with."""

    name: str
    title: str
    expected: str
    arms: tuple[Arm, ...]
    table: Callable[[Results, bool], Table]  # the flag: is_lectures
    judge: Callable[[Results, bool], Verdict]


def shortened(config: TrainConfig) -> TrainConfig:
    """The same run in a tenth of the steps, its warm-up too, and measured less exactly."""
    steps = max(1, config.max_iters // SHORTER)
    return config.replace(
        max_iters=steps,
        warmup_iters=config.warmup_iters // SHORTER,
        eval_interval=max(1, steps // 5),
        eval_iters=16,
    )


def one_seed(results: Results) -> str:
    """What a sentence about one seed has to add, and nothing where there are more."""
    return " (in one seed, which cannot tell it from chance)" if results.seeds == 1 else ""
