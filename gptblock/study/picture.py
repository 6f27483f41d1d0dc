"""A study as a picture: both losses of every arm over the steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gptblock.study.results import Results
from gptblock.study.run import Arm
from gptblock.training.plot import LOSS, plain_style, svg_of


def draw_curves(title: str, arms: Sequence[Arm], results: Results) -> str:
    """One panel for each that the arms name, as the text of an SVG; the same results give the same bytes.

    A curve is the mean over the seeds. The untrained loss is left out, for it would hide the rest.
    """
    panels = list(dict.fromkeys(panel for arm in arms for panel in arm.panels))
    with plain_style(fonttype="none"):
        figure = Figure(figsize=(1.5 + 5.2 * len(panels), 5.6), layout="constrained")
        figure.suptitle(title)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, panel, [arm for arm in arms if panel in arm.panels], results)
        return svg_of(figure)


def _draw_panel(axes: Axes, panel: str, arms: Sequence[Arm], results: Results) -> None:
    for number, arm in enumerate(arms):
        runs = results.runs(arm.name)
        points = list(zip(*(run.curve for run in runs), strict=False))[1:]  # where one diverged, all end
        steps = [point[0].step for point in points]
        train = [statistics.fmean(one.train_loss for one in point) for point in points]
        val = [statistics.fmean(one.val_loss for one in point) for point in points]
        axes.plot(steps, val, color=f"C{number}", label=arm.name)
        axes.plot(steps, train, color=f"C{number}", linestyle="--", linewidth=1)
    axes.plot([], [], color="black", label="validation")
    axes.plot([], [], color="black", linestyle="--", linewidth=1, label="training")
    axes.set(title=panel, xlabel="step", ylabel=LOSS)
    axes.grid(alpha=0.3)
    # Below, where no curve runs through it.
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
