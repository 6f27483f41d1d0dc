from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gptblock.bundle.store import read_tensors, write_tensors
from gptblock.config import TrainConfig
from gptblock.errors import CorruptError, NotFoundError
from gptblock.training import load_model, train
from gptblock.training.checkpoint import read_checkpoint, read_state, write_checkpoint


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TrainConfig(
        data=str(corpus),
        block_size=8,
        n_layer=1,
        n_head=2,
        n_embd=8,
        batch_size=4,
        max_iters=4,
        eval_interval=2,
        eval_iters=1,
        dropout=0.5,
        device="cpu",
    )
    run = tmp_path_factory.mktemp("trained") / "run"
    train(config, run)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_loads_as_it_was_trained(run: Path) -> None:
    before = torch.get_rng_state()
    loaded = load_model(run, "last")
    assert torch.equal(torch.get_rng_state(), before)
    weights = read_tensors(run / "checkpoints" / "last" / "model.safetensors")
    assert loaded.model.state_dict().keys() == weights.keys()
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, torch.from_numpy(weights[name])), name
    assert not any(module.training for module in loaded.model.modules())
    assert loaded.tokenizer.to_dict() == json.loads((run / "tokenizer.json").read_text())
    assert loaded.record.config["n_embd"] == 8
    assert loaded.record.steps == 4
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert loaded.record.val_loss == lines[-1]["val_loss"]
    best = read_state(run, "best")["best_val_loss"]
    assert load_model(run).record.val_loss == best == min(line["val_loss"] for line in lines)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_truncated_file_is_named(run: Path, name: str, share: float) -> None:
    path = run / "checkpoints" / "best" / name
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CorruptError, match=name):
        load_model(run)
    load_model(run, "last")


def test_resuming_needs_the_optimizer_whole(run: Path) -> None:
    path = run / "checkpoints" / "last" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CorruptError, match=r"optimizer\.safetensors"):
        read_checkpoint(run, "last")
    assert load_model(run, "last").record.steps == 4  # which generating does not need


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("lm_head.bias"), "it lacks lm_head.bias"),
        (lambda tensors: tensors.update(extra=tensors["lm_head.bias"]), "it has an unknown extra"),
        (
            lambda tensors: tensors.update({"lm_head.bias": tensors["lm_head.bias"][:3]}),
            r"lm_head\.bias is \(3,\) and should be \(10,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(run: Path, change: object, message: str) -> None:
    path = run / "checkpoints" / "best" / "model.safetensors"
    tensors = read_tensors(path)
    change(tensors)  # type: ignore[operator]
    write_tensors(path, tensors)
    with pytest.raises(CorruptError, match=message):
        load_model(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "newer gptblock"),
        ({"step": "4"}, "step must be int: got '4'"),
        ({"more": 1}, "expected the keys"),
        ({"config": {"n_layer": 0}}, "n_layer must be >= 1"),
        ({"tokenizer": {"type": "char", "vocab": "ba"}}, "vocabulary"),
    ],
)
def test_a_state_that_is_not_ours_is_refused(run: Path, changes: dict[str, object], message: str) -> None:
    path = run / "checkpoints" / "best" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CorruptError, match=message) as caught:
        load_model(run)
    assert str(path) in str(caught.value)


def test_no_run_and_no_checkpoint_say_what_to_do(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="gptblock train --out"):
        load_model(tmp_path / "nothing")
    shutil.rmtree(run / "checkpoints" / "best")
    with pytest.raises(NotFoundError, match="has no checkpoint 'best'"):
        load_model(run)


def test_a_checkpoint_is_tensors_and_json_only(run: Path) -> None:
    for which in ("best", "last"):
        names = sorted(path.name for path in (run / "checkpoints" / which).iterdir())
        assert names == ["model.safetensors", "optimizer.safetensors", "state.json"]


def test_a_failed_save_leaves_the_one_before(run: Path) -> None:
    checkpoint = read_checkpoint(run, "last")
    checkpoint.state["best_val_loss"] = float("nan")  # no number of JSON
    with pytest.raises(ValueError, match="JSON"):
        write_checkpoint(run / "checkpoints" / "last", checkpoint)
    assert load_model(run, "last").record.steps == 4
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best", "last"]


SAVE_FOREVER = """
import sys
from pathlib import Path
from gptblock.training.checkpoint import read_checkpoint, write_checkpoint
run = Path(sys.argv[1])
checkpoint = read_checkpoint(run, "last")
while True:
    checkpoint.state["step"] += 1
    write_checkpoint(run / "checkpoints" / "last", checkpoint)
    print(checkpoint.state["step"], flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX")
def test_a_kill_while_saving_leaves_a_whole_checkpoint(run: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOREVER, str(run)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        for _ in range(3):
            saved = int(process.stdout.readline())
        time.sleep(0.003)
        os.kill(process.pid, signal.SIGKILL)
    assert load_model(run, "last").record.steps >= saved
    read_checkpoint(run, "last")
