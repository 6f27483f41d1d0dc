from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gptblock.config import SamplingConfig, TrainConfig
from gptblock.errors import ConfigError, CorruptError, DivergedError
from gptblock.model import GPT
from gptblock.text.char import CharTokenizer
from gptblock.training import Event, Sampled, load_model, train
from gptblock.training.samples import append_sample, draw_sample, read_samples, rewind_samples

LAST = Path("checkpoints", "last")


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gptblock.training.plot.draw_losses", lambda _measurements, title, _config: title)


def tensors_of(run: Path) -> dict[str, bytes]:
    """Weights, moments, and what the next batches and dropouts are drawn from."""
    return {name: (run / LAST / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def test_a_sample_is_the_models_own_text(tiny_model: GPT, tiny_tokenizer: CharTokenizer) -> None:
    text = draw_sample(tiny_model, tiny_tokenizer, seed=3)
    tokens = tiny_model.generate(torch.tensor([[0]]), 200, SamplingConfig(), seed=3)
    assert text == tiny_tokenizer.decode(tokens[0, 1:].numpy())
    assert len(text) == 200
    assert draw_sample(tiny_model, tiny_tokenizer, seed=4) != text


def test_sampling_changes_nothing_that_is_learned(config: TrainConfig, tmp_path: Path) -> None:
    assert config.dropout > 0  # so that a draw from torch's generator would show
    train(config, tmp_path / "without")
    train(config.replace(sample_interval=1), tmp_path / "with")
    assert tensors_of(tmp_path / "with") == tensors_of(tmp_path / "without")
    assert not (tmp_path / "without" / "samples.jsonl").exists()


def test_samples_are_told_and_kept(config: TrainConfig, tmp_path: Path) -> None:
    events: list[Event] = []
    train(config.replace(sample_interval=10), tmp_path / "run", on_event=events.append)
    samples = [(event.step, event.text) for event in events if isinstance(event, Sampled)]
    assert [step for step, _ in samples] == [10, 20]
    lines = (tmp_path / "run" / "samples.jsonl").read_text().splitlines()
    assert [(line["step"], line["text"]) for line in map(json.loads, lines)] == samples
    loaded = load_model(tmp_path / "run", "last")
    assert draw_sample(loaded.model, loaded.tokenizer, config.seed) == samples[-1][1]


@pytest.mark.parametrize("stop", [8, 10])  # between two samples, at one
def test_stopped_and_resumed_the_samples_are_the_same(config: TrainConfig, tmp_path: Path, stop: int) -> None:
    config = config.replace(sample_interval=5)
    train(config, tmp_path / "straight")
    train(config, tmp_path / "stopped", stop_after=stop)
    append_sample(tmp_path / "stopped" / "samples.jsonl", 15, "of steps that a kill took back")
    train(config, tmp_path / "stopped", resume=True)
    straight, stopped = ((tmp_path / name / "samples.jsonl").read_text() for name in ("straight", "stopped"))
    assert straight == stopped
    assert straight.count("\n") == 4


def test_resuming_may_sample_otherwise_and_overwriting_begins_anew(
    config: TrainConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run" / "samples.jsonl"
    train(config.replace(sample_interval=5), tmp_path / "run", stop_after=10)
    train(config.replace(sample_interval=8), tmp_path / "run", resume=True)
    assert [step for step, _ in read_samples(path)] == [5, 10, 16]
    train(config, tmp_path / "run", overwrite=True)
    assert not path.exists()


def test_broken_weights_write_nothing(config: TrainConfig, tmp_path: Path) -> None:
    wild = config.replace(learning_rate=1e38, warmup_iters=0, sample_interval=1, eval_interval=20)
    with pytest.raises(DivergedError, match="the loss is nan at step 1"):
        train(wild, tmp_path / "run")
    assert not (tmp_path / "run" / "samples.jsonl").exists()


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match="sample_interval must be >= 0: got -1"):
        TrainConfig(sample_interval=-1)


def test_lines_come_back_as_written_and_a_foreign_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert read_samples(path) == []
    rewind_samples(path, 5)
    assert not path.exists()
    texts = [(1, "two\nlines\u2028\x00"), (2, '"{}"'), (3, "")]
    for step, text in texts:
        append_sample(path, step, text)
    assert read_samples(path) == texts
    with path.open("a") as file:
        file.write('{"step": 4, "te')
    rewind_samples(path, 2)
    assert read_samples(path) == texts[:2]
    with path.open("a") as file:
        file.write('{"step": 4}\n')
    with pytest.raises(CorruptError, match=r"line 3 of .*samples\.jsonl is no sample"):
        read_samples(path)
