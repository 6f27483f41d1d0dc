"""Each verdict over results that nobody measured: it follows them, in both directions."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gptblock.study import feedforward, ladder, norm, residual
from gptblock.study.results import Results

MEANS = dict(
    zip((rung.name for rung in ladder.RUNGS), (2.49, 2.41, 2.28, 2.25, 2.31, 2.08, 2.07), strict=True)
)
FAST = dict(zip(ladder.FAST.values(), (2.45, 2.6), strict=True))
WOBBLE = (-0.01, 0.0, 0.01)


def seeds(means: dict[str, float], wobble: tuple[float, ...] = WOBBLE) -> dict[str, list[float]]:
    return {arm: [mean + one for one in wobble] for arm, mean in means.items()}


def climb(make_up, **changes: float) -> Results:
    names = {"four": "four heads", "unadded": ladder.UNADDED.name, "normed": ladder.NORMED.name}
    return make_up(seeds(MEANS | FAST | {names[key]: value for key, value in changes.items()}))


def test_the_ladder_shows(make_up) -> None:
    verdict = ladder.judge(climb(make_up), True)
    assert verdict.showed
    assert verdict.sentence == (
        "The expected order showed: each part lowers the loss, from 2.490 to 2.070, but for three blocks "
        "without additions, which end 0.060 above one."
    )
    assert verdict.notes[0] == ("The furthest from the lecture's figure is one head: 2.410 here, 2.4 there.")


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"four": 2.42}, "four heads ends at 2.420, one head at 2.410"),
        ({"unadded": 2.2}, "three blocks, no residual ends at 2.200, + feed-forward at 2.250"),
        ({"normed": 2.09}, "+ LayerNorm ends at 2.090, + residual, projections, 4x at 2.080"),
    ],
)
def test_the_ladder_does_not_show(make_up, changes: dict[str, float], wrong: str) -> None:
    verdict = ladder.judge(climb(make_up, **changes), True)
    assert not verdict.showed
    assert verdict.sentence == f"The expected order did not show: {wrong}."


def test_the_ladders_last_step_is_told_in_deviations_of_one_run(make_up) -> None:
    note = ladder.judge(climb(make_up), False).notes[0]
    assert "is 0.010, or 1.0 standard deviations of a single run's loss (0.010)" in note
    assert note.endswith("it is 0.010 ±.000, clear of chance.")
    alike = make_up(seeds(MEANS | FAST) | {ladder.NORMED.name: [2.10, 2.07, 2.04]})
    assert ladder.judge(alike, False).notes[0].endswith("it is 0.010 ±.040, not clear of chance.")
    one = ladder.judge(make_up(seeds(MEANS | FAST, (0.0,))), False)
    assert "in this one seed, and cannot be told from chance" in one.notes[0]
    assert "(in one seed, which cannot tell it from chance)" in one.sentence


@pytest.mark.parametrize(("gap", "what"), [(0.08, "shows"), (0.01, "does not show")])
def test_the_ladder_says_where_overfitting_begins(make_up, gap: float, what: str) -> None:
    train = {name: mean - 0.03 for name, mean in MEANS.items()} | {ladder.ADDED.name: 2.08 - gap}
    results = make_up(seeds(MEANS | FAST), train=train | {ladder.NORMED.name: 2.07 - 0.01})
    assert ladder.judge(results, False).notes[1].endswith(f"the lecture's first overfitting {what}.")


@pytest.mark.parametrize(
    ("fast", "what"),
    [
        (2.6, "does not train: it ends no lower than the bigram (2.600 against 2.490)."),
        (2.45, "still trains, but worse: it ends 0.040 higher than at 0.001 (2.450 against 2.410)."),
        (2.40, "trains, not clearly worse: it ends 0.010 lower than at 0.001 (2.400 against 2.410)."),
    ],
)
def test_the_ladder_says_whether_the_bigrams_rate_trains(make_up, fast: float, what: str) -> None:
    results = make_up(seeds(MEANS | FAST | {ladder.FAST["one head"]: fast}))
    assert f"At the bigram's rate, 0.01, a single head {what}" in ladder.judge(results, False).notes


def test_the_lectures_numbers_stand_only_beside_its_own_text(make_up) -> None:
    with_them, without = (ladder.table(climb(make_up), flag) for flag in (True, False))
    assert with_them.columns == ("rung", "parameters", "lecture", "training", "validation")
    assert [row[2] for row in with_them.rows[:7]] == [
        "2.5",
        "2.4",
        "2.28",
        "2.24",
        "no better",
        "2.08",
        "2.06",
    ]
    assert [row[2] for row in with_them.rows[7:]] == ["", ""]
    assert without.columns == ("rung", "parameters", "training", "validation")
    assert with_them.rows[5][-1] == without.rows[5][-1] == "2.080 ±.010"
    assert any("furthest from the lecture" in note for note in ladder.judge(climb(make_up), True).notes)
    assert not any("furthest" in note for note in ladder.judge(climb(make_up), False).notes)


@pytest.mark.parametrize(("deep", "showed"), [(3.0, True), (2.29, False), (2.2, False)])
def test_residual(make_up, deep: float, showed: bool) -> None:
    means = {
        residual.name(1, True): 2.3,
        residual.name(1, False): 2.4,
        residual.name(4, True): 2.2,
        residual.name(4, False): deep,
    }
    gradient = {residual.name(4, True): 0.2, residual.name(4, False): 0.02, residual.name(1, False): 2.0}
    results = make_up(seeds(means), gradient=gradient)
    verdict = residual.judge(results, True)
    assert verdict.showed is showed
    assert verdict.sentence.startswith(
        f"That the gap grows with the depth {'showed' if showed else 'did not show'}: "
        f"without the additions the loss is 0.100 ±.000 higher in 1 block, and {deep - 2.2:.3f} ±.000"
    )
    assert verdict.notes == (
        "Before the first step the gradient that reaches the token embedding is, without the additions, "
        "2.0 times stronger through 1 block and 10 times weaker through 4.",
    )
    rows = residual.table(results, True).rows
    assert [row[-1] for row in rows] == ["1.0e+00", "2.0e+00", "2.0e-01", "2.0e-02"]
    assert [row[-2] for row in rows] == ["", "0.100 ±.000", "", f"{deep - 2.2:.3f} ±.000"]


def test_residual_says_which_is_lower(make_up) -> None:
    means = {residual.name(1, True): 2.3, residual.name(1, False): 2.25}
    means |= {residual.name(4, True): 2.2, residual.name(4, False): 3.0}
    sentence = residual.judge(make_up(seeds(means)), True).sentence
    assert sentence.endswith("the loss is 0.050 ±.000 lower in 1 block, and 0.800 ±.000 higher in 4.")


def norms(make_up, slow: tuple[float, float, float], fast: tuple[float, float, float]) -> Results:
    means = {}
    for rate, losses in zip(norm.RATES, (slow, fast), strict=True):
        means |= {norm.name(kind, rate): loss for kind, loss in zip(norm.KINDS, losses, strict=True)}
    return make_up(seeds(means))


def test_norm_says_at_which_rate_post_norm_fails(make_up) -> None:
    verdict = norm.judge(norms(make_up, (2.1, 2.1, 2.1), (3.3, 2.4, 2.2)), True)
    assert verdict.showed
    assert verdict.sentence == (
        "Post-norm's disadvantage in 6 blocks of width 32: at a rate of 0.001 it did not show "
        "(2.100 ±.010 against 2.100 ±.010), at a rate of 0.01 it showed "
        "(3.300 ±.010 against 2.200 ±.010)."
    )
    assert verdict.notes == (
        "At 0.01 the warm-up takes 0.900 off post-norm's loss, down to 2.400, which is 0.200 ±.000 above "
        "pre-norm.",
    )


def test_norm_says_where_nothing_shows_or_nothing_mends(make_up) -> None:
    nothing = norm.judge(norms(make_up, (2.1, 2.1, 2.1), (2.2, 2.2, 2.3)), True)
    assert (nothing.showed, nothing.notes) == (False, ())
    assert nothing.sentence.count("did not show") == 2
    stuck = norm.judge(norms(make_up, (2.1, 2.1, 2.1), (3.3, 3.3, 2.3)), True)
    assert stuck.notes == ("At 0.01 the warm-up does not mend it: it changes the loss by +0.000.",)
    mended = norm.judge(norms(make_up, (2.3, 2.1, 2.1), (3.3, 2.3, 2.3)), True)
    assert [note.endswith("no worse than pre-norm.") for note in mended.notes] == [True, True]


@pytest.mark.parametrize(
    ("wide", "fair", "showed", "words"),
    [
        (
            (2.4, 2.35, 2.32, 2.3),
            (2.36, 2.35, 2.32, 2.32),
            True,
            "size the same step lowers it by 0.040 ±.000.",
        ),
        ((2.4, 2.35, 2.32, 2.3), (2.3, 2.3, 2.32, 2.4), True, "size the same step raises it by 0.100 ±.000."),
        ((2.4, 2.35, 2.32, 2.3), (2.38, 2.2, 2.32, 2.31), False, "mostly its parameters did not show"),
        ((2.3, 2.3, 2.3, 2.3), (2.3, 2.3, 2.3, 2.3), False, "lowers the loss did not show"),
    ],
)
def test_feedforward(make_up, wide, fair, showed: bool, words: str) -> None:
    means = {
        feedforward.equal_parameters(ratio): loss for ratio, loss in zip((1, 2, 4, 8), fair, strict=True)
    }
    means |= {feedforward.equal_width(ratio): loss for ratio, loss in zip((1, 2, 4, 8), wide, strict=True)}
    verdict = feedforward.judge(make_up(seeds(means)), True)
    assert verdict.showed is showed
    assert words in verdict.sentence
    steps = ", ".join(f"{a - b:.3f}" for a, b in pairwise(wide))
    assert (
        verdict.notes[1] == f"At equal size the lowest is a ratio of {(1, 2, 4, 8)[fair.index(min(fair))]}."
    )
    assert verdict.notes[0] == f"The doublings from 1 to 8 take off {steps}."
