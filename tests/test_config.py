"""Configurations refuse what is not allowed, by name, and read back as they were written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gptblock import errors
from gptblock.config import PRESETS, ModelConfig, SamplingConfig, TrainConfig, read_toml, train_config
from gptblock.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 30}, "n_embd must be divisible by n_head.*: got n_embd = 30 and n_head = 4"),
        ({"n_head": 0}, "n_head must be >= 1: got 0"),
        ({"n_layer": -1}, "n_layer must be >= 1: got -1"),
        ({"block_size": 0}, "block_size must be >= 1: got 0"),
        ({"vocab_size": 0}, "vocab_size must be >= 1: got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\): got 1.0"),
        ({"dropout": -0.1}, r"dropout must be in \[0, 1\): got -0.1"),
        ({"dropout": float("nan")}, "dropout must be a finite number: got nan"),
        ({"n_embd": 32.0}, "n_embd must be int: got 32.0"),
        ({"n_embd": True}, "n_embd must be int: got True"),
        ({"init": "zeros"}, "init must be one of gpt2, normal, torch: got 'zeros'"),
        ({"n_heads": 4}, "ModelConfig has no field 'n_heads'; its fields are vocab_size, block_size"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(vocab_size=65, n_embd=32, n_head=4).replace(**changes)


def test_four_heads_share_the_width() -> None:
    assert ModelConfig(vocab_size=65, n_embd=32, n_head=4).head_size == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1: got 0"),
        ({"seed": -1}, "seed must be >= 0: got -1"),
        ({"threads": -1}, r"threads must be in 0..1024 \(0 = torch's choice\): got -1"),
        ({"threads": 100_000}, r"threads must be in 0..1024 .*: got 100000"),
        ({"learning_rate": 0}, "learning_rate must be > 0: got 0.0"),
        ({"learning_rate": float("inf")}, "learning_rate must be a finite number: got inf"),
        ({"min_lr": 0.1, "learning_rate": 0.01}, "min_lr must not be above learning_rate"),
        ({"cooldown": 1.5}, r"cooldown must be in \[0, 1\]: got 1.5"),
        ({"micro_batch_size": -1}, "micro_batch_size must be >= 0: got -1"),
        ({"token_shift": -1}, r"token_shift must be in 0..63 \(0 = off; below block_size.*\): got -1"),
        ({"token_shift": 64}, r"token_shift must be in 0..63 .*: got 64"),
        ({"dtype": "fp8"}, "dtype must be one of auto, fp32, bf16: got 'fp8'"),
        ({"beta1": 1.0}, r"beta1 must be in \[0, 1\): got 1.0"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda: got 'tpu'"),
        ({"n_embd": 30}, "n_embd must be divisible by n_head"),
    ],
)
def test_a_training_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig().replace(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -0.5}, "temperature must be >= 0"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"top_k": -1}, "top_k must be >= 0"),
        ({"top_p": 1.1}, r"top_p must be in \[0, 1\]"),
        ({"min_p": -0.1}, r"min_p must be in \[0, 1\]"),
        ({"repetition_penalty": 0}, "repetition_penalty must be > 0"),
    ],
)
def test_sampling_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingConfig().replace(**changes)


def test_a_configuration_is_frozen_and_reads_back() -> None:
    config = TrainConfig(dropout=0, n_embd=64)
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert isinstance(config.dropout, float)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.n_embd = 32  # type: ignore[misc]


def test_the_schedule_is_as_long_as_the_run_unless_said() -> None:
    assert TrainConfig(max_iters=7).resolved().lr_decay_iters == 7
    assert TrainConfig(max_iters=7, lr_decay_iters=3).resolved().lr_decay_iters == 3


def test_every_preset_is_a_configuration() -> None:
    assert {name: train_config(name).n_layer for name in PRESETS} == {
        "quick": 3,
        "fast": 1,
        "lecture": 6,
        "part6": 3,
    }
    with pytest.raises(
        ConfigError, match="there is no preset 'huge'; the presets are quick, fast, lecture, part6"
    ):
        train_config("huge")


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "fields.toml"
    file.write_text("n_head = 2\nn_layer = 5\n", encoding="utf-8")
    config = train_config("part6", file, {"n_layer": 7})
    assert (config.n_embd, config.n_head, config.n_layer) == (32, 2, 7)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"n_head = ", "cannot be read as TOML"),
        (b"\xff", "cannot be read as TOML"),
        (None, "there is no configuration file"),
    ],
)
def test_a_file_that_is_no_toml_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "fields.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_toml(file)


def test_the_tree_of_errors_has_the_exit_codes_it_draws() -> None:
    """The drawing at the top of errors.py: name, code where one is drawn, else the parent's."""
    drawn = [line.split() for line in (errors.__doc__ or "").splitlines() if "Error" in line]
    for words in drawn:
        name = next(word for word in words if word.endswith("Error"))
        codes = [int(word) for word in words if word.isdigit()]
        kind = getattr(errors, name)
        assert kind.exit_code == (codes[0] if codes else kind.__mro__[1].exit_code)
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {word for words in drawn for word in words if word.endswith("Error")} == classes
