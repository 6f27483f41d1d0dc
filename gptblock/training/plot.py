"""Pictures of losses: of one run, which is its loss.svg, and of two together; what all are drawn with."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gptblock.config import TrainConfig
from gptblock.training.metrics import Measurement, best_of
from gptblock.training.schedule import learning_rate

_POINTS = 500  # of the learning rate's curve, about

LOSS = "loss (nats per token)"


@contextmanager
def plain_style(fonttype: Literal["path", "none"] = "path") -> Iterator[None]:
    """matplotlib as it comes, whatever the user's own settings: the same numbers give the same bytes.

    Text is not mathematics: a file may well be called `$HOME`. `fonttype` "none" writes it as text, for the
    viewer's font: half the size where there is much of it.
    """
    with matplotlib.rc_context(
        {
            **matplotlib.rcParamsDefault,
            "svg.hashsalt": "gptblock",
            "svg.fonttype": fonttype,
            "text.parse_math": False,
        }
    ):
        yield


def svg_of(figure: Figure) -> str:
    """The figure as the text of an SVG. No window system and no pyplot is involved."""
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def draw_losses(measurements: Sequence[Measurement], title: str, config: TrainConfig) -> str:
    """Both losses over the steps, the best point marked, and below them the learning rate: an SVG's text.

    `config` is the run's resolved one; its schedule is drawn up to the last step measured. The same
    arguments give the same bytes. No window system and no pyplot is involved.
    """
    with plain_style():
        figure = Figure(figsize=(7, 4.6))
        losses = figure.add_axes((0.12, 0.31, 0.85, 0.62))
        rates = figure.add_axes((0.12, 0.1, 0.85, 0.16), sharex=losses)
        _plot(losses, measurements, "train_loss", marker=".", label="training")
        _plot(losses, measurements, "val_loss", marker=".", label="validation")
        best = best_of(measurements)
        _mark(losses, best, color="black", label=f"best: {best.val_loss:.4f} at step {best.step}")
        losses.set(title=title, ylabel=LOSS)
        losses.tick_params(labelbottom=False)
        losses.legend()
        steps = _spread(measurements[-1].step, config.warmup_iters)
        rates.plot(steps, [learning_rate(step, config) for step in steps], color="tab:gray", linewidth=1)
        rates.set_xlabel("step")
        rates.set_ylabel("learning rate", fontsize="small")
        rates.set_ylim(bottom=0)
        rates.yaxis.set_major_formatter(lambda rate, _: f"{rate:g}")
        for axes in (losses, rates):
            axes.grid(alpha=0.3)
            axes.yaxis.set_label_coords(-0.1, 0.5)
        return svg_of(figure)


def draw_comparison(runs: Mapping[str, Sequence[Measurement]]) -> str:
    """Both losses of each run, by its name, over the steps, in a colour of its own: an SVG's text."""
    with plain_style():
        figure = Figure(figsize=(7, 4.6))
        axes = figure.add_axes((0.1, 0.11, 0.87, 0.82))
        for number, (name, measurements) in enumerate(runs.items()):
            color, best = f"C{number}", best_of(measurements)
            _plot(axes, measurements, "train_loss", color=color, ls="--", lw=1, label=f"training, {name}")
            _plot(axes, measurements, "val_loss", color=color, marker=".", label=f"validation, {name}")
            _mark(axes, best, color=color, label=f"best: {best.val_loss:.4f} at step {best.step}")
        axes.set(title=" and ".join(runs), xlabel="step", ylabel=LOSS)
        axes.grid(alpha=0.3)
        axes.legend()
        return svg_of(figure)


def _plot(axes: Axes, measurements: Sequence[Measurement], field: str, **style: str | float) -> None:
    values = [getattr(measurement, field) for measurement in measurements]
    axes.plot([measurement.step for measurement in measurements], values, **style)  # type: ignore[arg-type]


def _mark(axes: Axes, best: Measurement, color: str, label: str) -> None:
    """A circle around a point."""
    axes.plot(
        best.step,
        best.val_loss,
        marker="o",
        markersize=10,
        markerfacecolor="none",
        color=color,
        linestyle="none",
        label=label,
    )


def _spread(last: int, corner: int) -> list[int]:
    """Steps from 0 to `last`, about evenly spread, and `corner` if it is among them."""
    steps = {*range(0, last, max(1, last // _POINTS)), last}
    return sorted(steps | ({corner} if corner < last else set()))
