"""Where the norm stands: after each addition, as in Vaswani et al. 2017, or before each part.

At the lecture's width and rate the difference does not show. It does at ten times that rate, where post-norm
without a warm-up never gets going; both are measured here.
"""

from __future__ import annotations

from gptblock.study.design import Study, Table, Verdict, one_seed
from gptblock.study.results import Results
from gptblock.study.run import LECTURE, Arm, exercise

DEPTH = 6
STEPS = 1000
WARMUP = 200
RATES = (LECTURE.learning_rate, 1e-2)
POST, WARMED, PRE = KINDS = ("post-norm", "post-norm with warm-up", "pre-norm")


def norm(_vocab_size: int) -> Study:
    """Three kinds at the lecture's learning rate, and at ten times that."""
    config = exercise(STEPS).replace(n_layer=DEPTH)
    arms = []
    for rate in RATES:
        at_rate = config.replace(learning_rate=rate, min_lr=rate)
        for kind, placement, warmup in ((POST, "post", 0), (WARMED, "post", WARMUP), (PRE, "pre", 0)):
            fields = at_rate.replace(norm_placement=placement, warmup_iters=warmup)
            arms.append(Arm(name(kind, rate), fields, panels=(f"learning rate {rate:g}",)))
    return Study(
        name="norm",
        title=f"Post-norm, also with {WARMUP} steps of warm-up, and pre-norm: {DEPTH} blocks",
        expected="post-norm ends above pre-norm, and a warm-up mends that",
        arms=tuple(arms),
        table=table,
        judge=judge,
    )


def name(kind: str, rate: float) -> str:
    """The arm of that kind."""
    return f"{kind}, at {rate:g}"


def table(results: Results, _is_lectures: bool) -> Table:
    """Losses, and how far each is above pre-norm at the same rate."""
    rows = []
    for rate in RATES:
        for kind in KINDS:
            arm = name(kind, rate)
            above = "" if kind == PRE else str(results.above(arm, name(PRE, rate)))
            rows.append((arm, str(results.train(arm)), str(results.val(arm)), above))
    return Table(("model", "training", "validation", "above pre-norm"), tuple(rows))


def judge(results: Results, _is_lectures: bool) -> Verdict:
    """At which rate post-norm is clearly worse, if at any; and whether the warm-up mends it there."""
    found = {}
    parts = []
    for rate in RATES:
        post, pre = name(POST, rate), name(PRE, rate)
        found[rate] = results.above(post, pre).is_clearly_positive
        parts.append(
            f"at a rate of {rate:g} it {'showed' if found[rate] else 'did not show'} "
            f"({results.val(post)} against {results.val(pre)})"
        )
    sentence = (
        f"Post-norm's disadvantage in {DEPTH} blocks of width {LECTURE.n_embd}{one_seed(results)}: "
        f"{', '.join(parts)}."
    )
    return Verdict(
        any(found.values()), sentence, tuple(_warmed(results, rate) for rate in RATES if found[rate])
    )


def _warmed(results: Results, rate: float) -> str:
    post, warmed, pre = (name(kind, rate) for kind in KINDS)
    if not results.above(post, warmed).is_clearly_positive:
        change = results.above(warmed, post).mean
        return f"At {rate:g} the warm-up does not mend it: it changes the loss by {change:+.3f}."
    left = results.above(warmed, pre)
    rest = f"which is {left} above pre-norm" if left.is_clearly_positive else "no worse than pre-norm"
    return (
        f"At {rate:g} the warm-up takes {results.above(post, warmed).mean:.3f} off post-norm's loss, down to "
        f"{results.val(warmed).mean:.3f}, {rest}."
    )
