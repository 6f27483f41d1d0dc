"""Several processes that train one model: the same losses as one, one that writes, and one that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gptblock.bundle.store import read_tensors
from gptblock.config import TrainConfig
from gptblock.errors import ConfigError, GptblockError
from gptblock.training import train
from gptblock.training.folder import write_config
from gptblock.training.processes import Processes

# fp32 without dropout: what differs is the order in which gradients are summed.
TOLERANCE = 2e-6


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gptblock.training.plot.draw_losses", lambda *_: "<svg/>")


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    """Batches of which one process has three rows, a part each, and the other two, none for the last."""
    return config.replace(dropout=0.0, batch_size=5, micro_batch_size=1)


def torchrun(config: TrainConfig, out: Path, *flags: str) -> subprocess.Popen[str]:
    """`gptblock train` in two processes."""
    out.parent.mkdir(exist_ok=True)
    write_config(out.parent, config)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
        *("-m", "gptblock", "train", "--out", str(out), *flags),
        *([] if "--resume" in flags else ["--config", str(out.parent / "config.toml")]),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


def losses_of(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines for name in ("step", "train_loss", "val_loss")]


def require_same(run: Path, other: Path) -> None:
    """The same losses all along, and the same files of the same tensors."""
    assert losses_of(run) == pytest.approx(losses_of(other), abs=TOLERANCE)
    for which in ("best", "last"):
        for name in ("model.safetensors", "optimizer.safetensors"):
            tensors, others = (
                read_tensors(folder / "checkpoints" / which / name, "pt") for folder in (run, other)
            )
            assert tensors.keys() == others.keys()
            for key, tensor in tensors.items():
                torch.testing.assert_close(tensor, others[key], atol=2e-5, rtol=1e-4, msg=key)


def test_two_processes_and_then_one_train_as_one(config: TrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "one")
    output = finish(torchrun(config, tmp_path / "two" / "run", "--stop-after", "10"))
    assert output.count("step 0: loss") == 1  # the first process alone reports
    train(config, tmp_path / "two" / "run", resume=True)
    require_same(tmp_path / "two" / "run", tmp_path / "one")


def test_a_model_spread_over_two_processes_trains_as_one(config: TrainConfig, tmp_path: Path) -> None:
    """From a checkpoint of one process, so that weights and moments are spread and gathered."""
    train(config, tmp_path / "one")
    train(config, tmp_path / "spread" / "run", stop_after=10)
    output = finish(torchrun(config, tmp_path / "spread" / "run", "--resume", "--shard"))
    assert "Warning" not in output
    require_same(tmp_path / "spread" / "run", tmp_path / "one")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find the process to kill")
def test_a_process_that_dies_ends_the_job_and_leaves_a_checkpoint(
    config: TrainConfig, tmp_path: Path
) -> None:
    run = tmp_path / "job" / "run"
    endless = config.replace(max_iters=1_000_000, eval_interval=5)
    job = torchrun(endless, run)
    until = time.monotonic() + 120
    while not (run / "checkpoints" / "best").is_dir() and time.monotonic() < until:
        time.sleep(0.2)
    (second,) = (pid for pid in children(job.pid) if b"\0RANK=1\0" in environment_of(pid))
    os.kill(second, signal.SIGKILL)
    output, _ = job.communicate(timeout=120)
    assert job.returncode != 0
    assert "error: another of this job's 2 processes ended" in output
    assert "--resume goes on from it" in output
    assert "[rank0]: Traceback" not in output
    assert train(endless, run, resume=True, stop_after=1).step % 5 == 1


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def environment_of(pid: int) -> bytes:
    return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_row_of_a_batch_is_computed_by_one_process(size: int) -> None:
    batch = torch.arange(5)
    shares = [Processes(rank, size).share(batch) for rank in range(size)]
    assert torch.cat(shares).tolist() == batch.tolist()
    assert max(map(len, shares)) == Processes(0, size).largest_share(5)


def test_alone_all_is_its_own() -> None:
    alone = Processes()
    assert alone.is_first
    assert alone.sum(torch.tensor(3.0)).item() == 3.0
    assert (alone.any(True), alone.any(False)) == (True, False)
    assert alone.by_first(lambda: 7) == 7
    with pytest.raises(GptblockError, match="as it is"):
        alone.by_first(lambda: (_ for _ in ()).throw(GptblockError("as it is")))


def test_shard_needs_several_processes(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is one: start it with torchrun --nproc-per-node 2"):
        train(config, tmp_path / "run", shard=True)
    assert not (tmp_path / "run").exists()
