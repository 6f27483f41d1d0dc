"""The residual additions: what a deep stack of blocks is without them, and why.

Without norms, as in the lecture when it adds them: a norm keeps a part of the gradient alive by itself.
"""

from __future__ import annotations

from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.model import GPT, Block
from gptblock.study.design import Study, Table, Verdict, one_seed
from gptblock.study.results import Results, Spread
from gptblock.study.run import Arm, Run, exercise

SHALLOW, DEEP = DEPTHS = (1, 4)
STEPS = 1000


class UnaddedBlock(Block):
    """The block, but that each part replaces the stream. x (B, T, C) -> (B, T, C)."""

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:  # noqa: ARG002
        return attended

    def after_feedforward(self, x: Tensor, thought: Tensor) -> Tensor:  # noqa: ARG002
        return thought


def unadded(config: ModelConfig) -> GPT:
    """The GPT without residual additions. Its weights start as those of the GPT with them do."""
    model = GPT(config)
    blocks = []
    for block in model.blocks:
        blocks.append(UnaddedBlock(config))
        blocks[-1].load_state_dict(block.state_dict())
    model.blocks = nn.ModuleList(blocks)
    return model


def residual(_vocab_size: int) -> Study:
    """Two depths, with and without the additions."""
    config = exercise(STEPS).replace(norm="none")
    arms = [
        Arm(name(depth, added), config.replace(n_layer=depth), build, (f"{depth} block{'s' * (depth > 1)}",))
        for depth in DEPTHS
        for added, build in ((True, GPT), (False, unadded))
    ]
    return Study(
        name="residual",
        title="Residual additions, without norms",
        expected="what the additions gain grows with the depth",
        arms=tuple(arms),
        table=table,
        judge=judge,
    )


def name(depth: int, added: bool) -> str:
    """The arm of so many blocks."""
    return f"{depth} block{'s' * (depth > 1)}{'' if added else ', nothing added'}"


def table(results: Results, _is_lectures: bool) -> Table:
    """Losses, and the gradient that reaches the embedding before the first step."""
    rows = []
    for depth in DEPTHS:
        for added in (True, False):
            arm = name(depth, added)
            gap = "" if added else str(_gap(results, depth))
            rows.append(
                (arm, str(results.train(arm)), str(results.val(arm)), gap, f"{_gradient(results, arm):.1e}")
            )
    return Table(("model", "training", "validation", "gap", "gradient"), tuple(rows))


def judge(results: Results, _is_lectures: bool) -> Verdict:
    """Whether the gap between with and without is wider at the greater depth."""
    shallow, deep = _gap(results, SHALLOW), _gap(results, DEEP)
    growth = Spread(tuple(b - a for a, b in zip(shallow.values, deep.values, strict=True)))
    showed = growth.is_clearly_positive
    sentence = (
        f"That the gap grows with the depth {'showed' if showed else 'did not show'}{one_seed(results)}: "
        f"without the additions the loss is {_compared(shallow)} in {SHALLOW} block, "
        f"and {_compared(deep)} in {DEEP}."
    )
    weaker = {
        depth: _gradient(results, name(depth, True)) / _gradient(results, name(depth, False))
        for depth in DEPTHS
    }
    note = (
        f"Before the first step the gradient that reaches the token embedding is, without the additions, "
        f"{_times(weaker[SHALLOW])} through {SHALLOW} block and {_times(weaker[DEEP])} through {DEEP}."
    )
    return Verdict(showed, sentence, (note,))


def _compared(gap: Spread) -> str:
    return f"{gap} higher" if gap.mean >= 0 else f"{-gap} lower"


def _times(ratio: float) -> str:
    times = max(ratio, 1 / ratio)
    return f"{times:,.{1 if times < 10 else 0}f} times {'weaker' if ratio >= 1 else 'stronger'}"


def _gap(results: Results, depth: int) -> Spread:
    return results.above(name(depth, added=False), name(depth, added=True))


def _gradient(results: Results, arm: str) -> float:
    """At the token embedding, before the first step: the mean of the seeds."""

    def first(run: Run) -> float:
        return run.curve[0].gradient

    return results.spread(arm, first).mean
