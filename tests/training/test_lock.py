"""Two trainings in one folder: the second is refused, and harms nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gptblock.config import TrainConfig
from gptblock.errors import RunExistsError
from gptblock.training import Event, Stepped, train
from gptblock.training.lock import LOCK, locked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no lock on Windows")


@pytest.mark.parametrize("flags", [{"resume": True}, {"overwrite": True}])
def test_a_run_that_is_being_trained_is_left_alone(
    flags: dict[str, bool], config: TrainConfig, tmp_path: Path
) -> None:
    run, refused = tmp_path / "run", []

    def disturb(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 8:
            with pytest.raises(RunExistsError, match=r"another process is training in .*run: wait for it"):
                train(config, run, **flags)  # type: ignore[arg-type]
            refused.append(event.step)

    assert train(config, run, on_event=disturb).step == 20
    assert refused == [8]
    train(config, tmp_path / "alone")
    weights = [
        (folder / "checkpoints/last/model.safetensors").read_bytes() for folder in (run, tmp_path / "alone")
    ]
    assert weights[0] == weights[1]


def test_nothing_is_left_of_a_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):  # it is free again
        pass
