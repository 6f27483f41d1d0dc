"""The feed-forward's width: what a ratio of 4 buys, and what the parameters alone would have bought."""

from __future__ import annotations

from gptblock.config import ModelConfig, TrainConfig
from gptblock.study.design import Study, Table, Verdict, one_seed
from gptblock.study.results import Results
from gptblock.study.run import Arm, exercise

RATIOS = (1, 2, 4, 8)
USUAL = 4
STEPS = 1500
EQUAL_WIDTH, EQUAL_PARAMETERS = "equal width", "equal size"


def feedforward(vocab_size: int) -> Study:
    """Each ratio at the lecture's width, and at the width that gives as many parameters as a ratio of 4."""
    config = exercise(STEPS)
    wanted = size(config.replace(ff_ratio=USUAL).model(vocab_size))[0]
    arms = []
    for ratio in RATIOS:
        panels = (EQUAL_WIDTH, EQUAL_PARAMETERS) if ratio == USUAL else (EQUAL_WIDTH,)
        arms.append(Arm(equal_width(ratio), config.replace(ff_ratio=ratio), panels=panels))
    for ratio in RATIOS:
        if ratio != USUAL:
            fields = matched(config.replace(ff_ratio=ratio), vocab_size, wanted)
            arms.append(Arm(equal_parameters(ratio), fields, panels=(EQUAL_PARAMETERS,)))

    def table(results: Results, _is_lectures: bool) -> Table:
        """Sizes and losses."""
        rows = []
        for arm in arms:
            total, inside = size(arm.config.model(vocab_size))
            rows.append(
                (
                    arm.name,
                    str(arm.config.n_embd),
                    f"{total:,}",
                    f"{inside / total:.0%}",
                    str(results.train(arm.name)),
                    str(results.val(arm.name)),
                )
            )
        return Table(("model", "width", "parameters", "in ffwd", "training", "validation"), tuple(rows))

    return Study(
        name="feedforward",
        title="The feed-forward's ratio",
        expected="a wider one lowers the loss, and less than half of that is left at equal size",
        arms=tuple(arms),
        table=table,
        judge=judge,
    )


def equal_width(ratio: int) -> str:
    """The arm of the lecture's width."""
    return f"ratio {ratio}"


def equal_parameters(ratio: int) -> str:
    """The arm with as many parameters as a ratio of 4 has at the lecture's width."""
    return equal_width(ratio) if ratio == USUAL else f"ratio {ratio}, equal size"


def size(config: ModelConfig) -> tuple[int, int]:
    """How many parameters the lecture's model has in that shape, and how many of them in its feed-forward."""
    C, V = config.n_embd, config.vocab_size
    inside = 2 * C * config.ff_size + config.ff_size + C  # two matrices and their biases
    attention = 4 * C * C + C  # queries, keys and values without a bias, the projection with one
    norms = 2 * 2 * C
    ends = V * C + config.block_size * C + 2 * C + C * V + V  # embeddings, the last norm, the head
    return ends + config.n_layer * (attention + norms + inside), config.n_layer * inside


def matched(config: TrainConfig, vocab_size: int, parameters: int) -> TrainConfig:
    """The same model, as wide as brings it nearest to so many parameters; a width that the heads divide."""
    widths = range(config.n_head, 4 * config.n_embd, config.n_head)
    shapes = [config.replace(n_embd=width) for width in widths]
    return min(shapes, key=lambda shape: abs(size(shape.model(vocab_size))[0] - parameters))


def judge(results: Results, _is_lectures: bool) -> Verdict:
    """Whether a wider one is better, and whether less than half of that is left at equal size."""
    narrow, wide = RATIOS[0], RATIOS[-1]
    gain = results.above(equal_width(narrow), equal_width(wide))
    left = results.above(equal_parameters(narrow), equal_parameters(wide))
    is_better, is_mostly_size = gain.is_clearly_positive, left.mean < gain.mean / 2
    sentence = (
        f"That a wider feed-forward lowers the loss {'showed' if is_better else 'did not show'}"
        f"{one_seed(results)}: from a ratio of {narrow} to one of {wide} by {gain}"
    )
    if is_better:
        change = f"lowers it by {left}" if left.mean > 0 else f"raises it by {-left}"
        sentence += (
            f"; that this is mostly its parameters {'showed' if is_mostly_size else 'did not show'}: "
            f"at equal size the same step {change}"
        )
    best = min(RATIOS, key=lambda ratio: results.val(equal_parameters(ratio)).mean)
    doublings = ", ".join(
        f"{results.above(equal_width(ratio), equal_width(2 * ratio)).mean:.3f}" for ratio in RATIOS[:-1]
    )
    notes = (
        f"The doublings from {narrow} to {wide} take off {doublings}.",
        f"At equal size the lowest is a ratio of {best}.",
    )
    return Verdict(is_better and is_mostly_size, sentence + ".", notes)
