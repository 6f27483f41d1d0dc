"""loss.svg: the losses of a run as a picture; and what every picture here is drawn with."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import matplotlib
from matplotlib.figure import Figure

from gptblock.training.metrics import Measurement

LOSS = "loss (nats per token)"


@contextmanager
def plain_style(fonttype: Literal["path", "none"] = "path") -> Iterator[None]:
    """matplotlib's own defaults, whatever the user's are: the same numbers give the same bytes.

    `fonttype` "none" writes text as text, for the viewer's font: half the size where there is much of it.
    """
    with matplotlib.rc_context(
        {**matplotlib.rcParamsDefault, "svg.hashsalt": "gptblock", "svg.fonttype": fonttype}
    ):
        yield


def svg_of(figure: Figure) -> str:
    """The figure as the text of an SVG. No window system and no pyplot is involved."""
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def draw_losses(measurements: Sequence[Measurement], title: str) -> str:
    """Both losses over the steps, the best point marked, as the text of an SVG."""
    with plain_style():
        figure = Figure(figsize=(7, 4))
        axes = figure.add_axes((0.09, 0.13, 0.88, 0.78))
        steps = [measurement.step for measurement in measurements]
        axes.plot(steps, [m.train_loss for m in measurements], marker=".", label="training")
        axes.plot(steps, [m.val_loss for m in measurements], marker=".", label="validation")
        best = min(measurements, key=lambda measurement: measurement.val_loss)
        axes.plot(
            best.step,
            best.val_loss,
            marker="o",
            markersize=10,
            markerfacecolor="none",
            color="black",
            linestyle="none",
            label=f"best: {best.val_loss:.4f} at step {best.step}",
        )
        axes.set(title=title, xlabel="step", ylabel=LOSS)
        axes.grid(alpha=0.3)
        axes.legend()
        return svg_of(figure)
