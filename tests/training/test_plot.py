from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gptblock.config import TrainConfig
from gptblock.training import train
from gptblock.training.metrics import Measurement
from gptblock.training.plot import draw_comparison, draw_losses

MEASUREMENTS = [
    Measurement(step, train, val, lr=1e-3, tokens_per_second=1.0, seconds=1.0)
    for step, train, val in [(0, 4.0, 4.1), (100, 2.0, 2.25), (200, 1.5, 2.5)]
]
CONFIG = TrainConfig(max_iters=200, warmup_iters=37).resolved()


def curves(svg: str) -> list[list[tuple[float, float]]]:
    """The points of every unbroken line with three points at least, in the order of drawing."""
    paths = re.findall(r'<path d="(M [^"zQC]*?)" clip-path', svg)  # which those of the legend have not
    points = [re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path) for path in paths]
    return [[(float(x), float(y)) for x, y in line] for line in points if len(line) > 2]


def test_the_same_measurements_give_the_same_bytes() -> None:
    svg = draw_losses(MEASUREMENTS, "a run", CONFIG)
    assert svg == draw_losses(MEASUREMENTS, "a run", CONFIG)
    assert svg != draw_losses(MEASUREMENTS[:2], "a run", CONFIG)
    assert svg != draw_losses(MEASUREMENTS, "a run", CONFIG.replace(warmup_iters=38))
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_it_says_what_it_shows() -> None:
    svg = draw_losses(
        MEASUREMENTS, "a run", CONFIG
    )  # text is drawn as paths, each under a comment that holds it
    for text in (
        "a run",
        "step",
        "loss (nats per token)",
        "training",
        "validation",
        "best: 2.2500 at step 100",
        "learning rate",
        "0.005",  # the learning rate's axis
    ):
        assert f"<!-- {text} -->" in svg, text


def test_the_curves_are_the_losses_and_the_schedule() -> None:
    """Heights in the picture, against the numbers they stand for; y grows downwards."""
    training, validation, rate = curves(draw_losses(MEASUREMENTS, "a run", CONFIG))
    assert [x for x, _ in training] == [x for x, _ in validation]
    (_, top), (_, middle), (_, bottom) = training
    assert (bottom - middle) / (bottom - top) == pytest.approx((2.0 - 1.5) / (4.0 - 1.5), rel=1e-4)
    assert validation[1][1] - validation[0][1] == pytest.approx((4.1 - 2.25) / 2.5 * (bottom - top), rel=1e-4)
    assert (rate[0][0], rate[-1][0]) == (training[0][0], training[-1][0])
    peak = min(rate, key=lambda point: point[1])
    share = (peak[0] - rate[0][0]) / (rate[-1][0] - rate[0][0])
    assert share == pytest.approx(37 / 200, abs=1e-3)  # where the warm-up ends


def test_a_name_is_no_mathematics() -> None:
    assert "<!-- Training on $x_1$ -->" in draw_losses(MEASUREMENTS, "Training on $x_1$", CONFIG)


def test_a_run_ends_with_its_picture(config: TrainConfig, tmp_path: Path) -> None:
    result = train(config, tmp_path / "run")
    assert f"<!-- best: {result.best_val_loss:.4f} at step" in (tmp_path / "run" / "loss.svg").read_text()


def test_one_point_is_enough() -> None:
    assert "best: 4.1000 at step 0" in draw_losses(MEASUREMENTS[:1], "a run", CONFIG)


def test_two_runs_in_one_picture() -> None:
    shorter = [Measurement(step, 3.0, 3.5 - step / 100, 1e-3, 1.0, 1.0) for step in (0, 50, 100)]
    svg = draw_comparison({"one": MEASUREMENTS, "_two": shorter})
    for text in (
        "one and _two",
        "training, one",
        "validation, one",
        "best: 2.2500 at step 100",
        "training, _two",
        "validation, _two",
        "best: 2.5000 at step 100",
    ):
        assert f"<!-- {text} -->" in svg, text
    _, first, level, second = curves(svg)
    assert {y for _, y in level} == {level[0][1]}
    assert second[-1][0] == first[1][0]  # both at step 100
    assert second[-1][1] < first[1][1]  # 2.5 above 2.25
