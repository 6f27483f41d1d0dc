"""The runs of a study by arm: means over the seeds, and differences from seed to seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gptblock.study.run import Run

CLEAR = 3  # standard errors: of three seeds, what chance alone gives one time in twenty


@dataclass(frozen=True)
class Spread:
    """Numbers of several seeds, one each."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        """The standard deviation of one seed; unknown from one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def is_clearly_positive(self) -> bool:
        """Whether the mean is above 0 by more than CLEAR standard errors; of one seed, whether it is."""
        error = 0.0 if self.sd is None else self.sd / len(self.values) ** 0.5
        return self.mean > CLEAR * error

    def __neg__(self) -> Spread:
        return Spread(tuple(-value for value in self.values))

    def __str__(self) -> str:
        if self.sd is None:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ±{self.sd:.3f}".replace("±0", "±")


class Results:
    """Runs by arm, in the order of the seeds, the same for all arms."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._by_arm: dict[str, list[Run]] = {}
        for run in runs:
            self._by_arm.setdefault(run.arm, []).append(run)

    def runs(self, arm: str) -> Sequence[Run]:
        return self._by_arm[arm]

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(next(iter(self._by_arm.values())))

    def spread(self, arm: str, number: Callable[[Run], float]) -> Spread:
        return Spread(tuple(map(number, self._by_arm[arm])))

    def val(self, arm: str) -> Spread:
        """Validation losses at the end."""
        return self.spread(arm, lambda run: run.val_loss)

    def train(self, arm: str) -> Spread:
        """Training losses at the end."""
        return self.spread(arm, lambda run: run.train_loss)

    def overfit(self, arm: str) -> Spread:
        """By how much validation ends above training."""
        return self.spread(arm, lambda run: run.val_loss - run.train_loss)

    def above(self, arm: str, other: str) -> Spread:
        """By how much `arm` ends above `other` in validation, seed by seed.

        A seed's runs are measured on the same windows, so that this is known better than either loss.
        """
        pairs = zip(self._by_arm[arm], self._by_arm[other], strict=True)
        return Spread(tuple(one.val_loss - two.val_loss for one, two in pairs))

    def parameters(self, arm: str) -> int:
        return self._by_arm[arm][0].parameters
