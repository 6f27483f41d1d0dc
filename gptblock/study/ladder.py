"""The ladder of the lecture's sixth part: what each part of the block takes off the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from gptblock.config import ModelConfig
from gptblock.study import rungs
from gptblock.study.design import Study, Table, Verdict, one_seed
from gptblock.study.results import Results
from gptblock.study.run import LECTURE, Arm

BIGRAM_RATE = 1e-2


@dataclass(frozen=True)
class Rung:
    """A rung, and the validation loss that the lecture shows for it."""

    name: str
    build: Callable[[ModelConfig], nn.Module]
    lecture: float | None  # None: it says "no better"


BIGRAM = Rung("bigram", rungs.Bigram, 2.5)
ONE_HEAD = Rung("one head", rungs.one_head, 2.4)
NARROW = Rung("+ feed-forward", rungs.with_feedforward, 2.24)
UNADDED = Rung("three blocks, no residual", rungs.without_residual, None)
ADDED = Rung("+ residual, projections, 4x", rungs.with_residual, 2.08)
NORMED = Rung("+ LayerNorm", rungs.with_norm, 2.06)
RUNGS = (BIGRAM, ONE_HEAD, Rung("four heads", rungs.heads, 2.28), NARROW, UNADDED, ADDED, NORMED)
FAST = {rung.name: f"{rung.name}, at {BIGRAM_RATE:g}" for rung in (ONE_HEAD, NORMED)}


def ladder(_vocab_size: int) -> Study:
    """The rungs, and two of them at the bigram's learning rate."""
    fast = LECTURE.replace(learning_rate=BIGRAM_RATE, min_lr=BIGRAM_RATE)
    steps, rates = "the ladder", f"learning rates {LECTURE.learning_rate:g} and {BIGRAM_RATE:g}"
    arms = [Arm(BIGRAM.name, fast.replace(max_iters=3000), BIGRAM.build, (steps,))]
    for rung in RUNGS[1:]:
        arms.append(Arm(rung.name, LECTURE, rung.build, (steps, rates) if rung.name in FAST else (steps,)))
    arms += [Arm(FAST[rung.name], fast, rung.build, (rates,)) for rung in (ONE_HEAD, NORMED)]
    return Study(
        name="ladder",
        title="The ladder of losses",
        expected="each part lowers the loss, but for three blocks without residual additions",
        arms=tuple(arms),
        table=table,
        judge=judge,
    )


def table(results: Results, is_lectures: bool) -> Table:
    """Losses rung by rung; the lecture's beside them where they may be compared."""
    rows = []
    lecture = {rung.name: "no better" if rung.lecture is None else f"{rung.lecture:g}" for rung in RUNGS}
    for name in [*lecture, *FAST.values()]:
        cells = [name, f"{results.parameters(name):,}", str(results.train(name)), str(results.val(name))]
        if is_lectures:
            cells.insert(2, lecture.get(name, ""))
        rows.append(tuple(cells))
    columns = ["rung", "parameters", "training", "validation"]
    if is_lectures:
        columns.insert(2, "lecture")
    return Table(tuple(columns), tuple(rows))


def judge(results: Results, is_lectures: bool) -> Verdict:
    """Whether the rungs come in the lecture's order; and what else it says of them."""
    val = {rung.name: results.val(rung.name).mean for rung in RUNGS}
    wrong = [
        f"{upper.name} ends at {val[upper.name]:.3f}, {lower.name} at {val[lower.name]:.3f}"
        for lower, upper in pairwise(RUNGS)
        if (val[upper.name] < val[lower.name]) is (upper is UNADDED)
    ]
    if wrong:
        sentence = f"The expected order did not show{one_seed(results)}: {'; '.join(wrong)}."
    else:
        sentence = (
            f"The expected order showed{one_seed(results)}: each part lowers the loss, "
            f"from {val[BIGRAM.name]:.3f} to {val[NORMED.name]:.3f}, but for three blocks without additions, "
            f"which end {val[UNADDED.name] - val[NARROW.name]:.3f} above one."
        )
    notes = [_last_step(results), _overfitting(results), *(_fast(results, rung) for rung in FAST)]
    if is_lectures:
        notes.insert(0, _beside_the_lecture(val))
    return Verdict(not wrong, sentence, tuple(notes))


def _beside_the_lecture(val: dict[str, float]) -> str:
    compared = {rung.name: rung.lecture for rung in RUNGS if rung.lecture is not None}
    worst = max(compared, key=lambda name: abs(val[name] - compared[name]))
    here, there = val[worst], compared[worst]
    return f"The furthest from the lecture's figure is {worst}: {here:.3f} here, {there:g} there."


def _last_step(results: Results) -> str:
    """One seed could tell a story here that the next one contradicts."""
    gain = results.above(ADDED.name, NORMED.name)
    sd = results.val(NORMED.name).sd
    if not sd:
        return (
            f"The last step, LayerNorm, is {gain} in this one seed, and cannot be told from chance by it: "
            f"give more --seeds."
        )
    return (
        f"The last step, LayerNorm, is {gain.mean:.3f}, or {gain.mean / sd:.1f} standard deviations of a "
        f"single run's loss ({sd:.3f}): the losses of one seed each tell no story. Measured on the same "
        f"windows, seed by seed, it is {gain}, "
        f"{'clear of' if gain.is_clearly_positive else 'not clear of'} chance."
    )


def _overfitting(results: Results) -> str:
    """The lecture first sees training ahead of validation at the residual rung."""
    (before, where), (after, there) = (
        max((results.overfit(rung.name).mean, rung.name.removeprefix("+ ")) for rung in part)
        for part in (RUNGS[: RUNGS.index(ADDED)], (ADDED, NORMED))
    )
    return (
        f"Validation ends above training by {before:.3f} at most before the residual additions ({where}), "
        f"and by {after:.3f} with them ({there}): the lecture's first overfitting "
        f"{'shows' if after > before else 'does not show'}."
    )


def _fast(results: Results, name: str) -> str:
    """Whether the bigram's learning rate still trains this rung."""
    fast, usual, bigram = (results.val(arm).mean for arm in (FAST[name], name, BIGRAM.name))
    above = results.above(FAST[name], name)
    if not results.above(BIGRAM.name, FAST[name]).is_clearly_positive:
        what = f"does not train: it ends no lower than the bigram ({fast:.3f} against {bigram:.3f})"
    else:
        how = "still trains, but worse" if above.is_clearly_positive else "trains, not clearly worse"
        what = (
            f"{how}: it ends {abs(above.mean):.3f} {'higher' if above.mean > 0 else 'lower'} than at "
            f"{LECTURE.learning_rate:g} ({fast:.3f} against {usual:.3f})"
        )
    who = "a single head" if name == ONE_HEAD.name else "the whole model"
    return f"At the bigram's rate, {BIGRAM_RATE:g}, {who} {what}{one_seed(results)}."
