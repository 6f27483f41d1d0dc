from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from gptblock.config import TrainConfig
from gptblock.training import train
from gptblock.training.metrics import Measurement
from gptblock.training.plot import draw_losses

MEASUREMENTS = [
    Measurement(step, train, val, lr=1e-3, tokens_per_second=1.0, seconds=1.0)
    for step, train, val in [(0, 4.0, 4.1), (100, 2.0, 2.25), (200, 1.5, 2.5)]
]


def test_the_same_measurements_give_the_same_bytes() -> None:
    svg = draw_losses(MEASUREMENTS, "a run")
    assert svg == draw_losses(MEASUREMENTS, "a run")
    assert svg != draw_losses(MEASUREMENTS[:2], "a run")
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_it_says_what_it_shows() -> None:
    svg = draw_losses(MEASUREMENTS, "a run")  # text is drawn as paths, each under a comment that holds it
    for text in (
        "a run",
        "step",
        "loss (nats per token)",
        "training",
        "validation",
        "best: 2.2500 at step 100",
    ):
        assert f"<!-- {text} -->" in svg, text


def test_a_run_ends_with_its_picture(config: TrainConfig, tmp_path: Path) -> None:
    result = train(config, tmp_path / "run")
    assert f"<!-- best: {result.best_val_loss:.4f} at step" in (tmp_path / "run" / "loss.svg").read_text()


def test_one_point_is_enough() -> None:
    assert "best: 4.1000 at step 0" in draw_losses(MEASUREMENTS[:1], "a run")
