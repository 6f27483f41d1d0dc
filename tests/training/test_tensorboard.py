"""TensorBoard's event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gptblock.config import TrainConfig
from gptblock.errors import MissingExtraError
from gptblock.training import train
from gptblock.training.metrics import read_measurements
from gptblock.training.tensorboard import TensorBoardLog


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gptblock.training.plot.draw_losses", lambda _measurements, title, _config: title)


@pytest.fixture
def tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


def scalars_of(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every scalar, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def measured(run: Path) -> dict[str, list[tuple[int, float]]]:
    """The same of metrics.jsonl; the file holds float32."""
    fields = {
        "loss/train": "train_loss",
        "loss/validation": "val_loss",
        "learning_rate": "lr",
        "tokens_per_second": "tokens_per_second",
    }
    measurements = read_measurements(run / "metrics.jsonl")
    return {
        tag: [(one.step, pytest.approx(getattr(one, field), rel=1e-6)) for one in measurements]
        for tag, field in fields.items()
    }


def train_logged(config: TrainConfig, run: Path, **options: bool | int | None) -> None:
    with TensorBoardLog() as log:
        train(config, run, on_event=log, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("tensorboard")
def test_every_measurement_is_there(config: TrainConfig, tmp_path: Path) -> None:
    train_logged(config, tmp_path / "run")
    scalars = scalars_of(tmp_path / "run")
    assert scalars == measured(tmp_path / "run")
    assert [step for step, _ in scalars["loss/validation"]] == [0, 6, 12, 18, 20]


@pytest.mark.usefixtures("tensorboard")
@pytest.mark.parametrize("stop", [3, 10, 12])  # before there is a best, between two evaluations, at one
def test_resumed_every_step_is_there_once(config: TrainConfig, tmp_path: Path, stop: int) -> None:
    run = tmp_path / "run"
    train_logged(config, run, stop_after=stop)
    assert scalars_of(run) == measured(run)
    train_logged(config, run, resume=True)
    assert scalars_of(run) == measured(run)
    assert [step for step, _ in scalars_of(run)["loss/train"]] == [0, 6, 12, 18, 20]


@pytest.mark.usefixtures("tensorboard")
def test_what_was_measured_before_there_was_a_log_is_there_too(config: TrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "run", stop_after=12)
    train_logged(config, tmp_path / "run", resume=True)
    assert scalars_of(tmp_path / "run") == measured(tmp_path / "run")


@pytest.mark.usefixtures("tensorboard")
def test_a_new_run_begins_a_new_log(config: TrainConfig, tmp_path: Path) -> None:
    train_logged(config, tmp_path / "run")
    train_logged(config.replace(max_iters=6), tmp_path / "run", overwrite=True)
    assert [step for step, _ in scalars_of(tmp_path / "run")["loss/train"]] == [0, 6]
    train(config, tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_without_tensorboard_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError) as caught:
        TensorBoardLog()
    assert str(caught.value).endswith("which is not installed: pip install 'gptblock[tensorboard]'")
    assert caught.value.exit_code == 4
