"""A text and a configuration that train in a moment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gptblock.config import TrainConfig


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 characters over "abcdefgh \\n"."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(random.Random(0).choices("abcdefgh \n", k=2000)), encoding="utf-8")
    return path


@pytest.fixture
def config(corpus: Path) -> TrainConfig:
    """20 steps of a tiny model with dropout."""
    return TrainConfig(
        data=str(corpus),
        block_size=8,
        n_layer=2,
        n_head=2,
        n_embd=16,
        dropout=0.2,
        batch_size=4,
        max_iters=20,
        warmup_iters=3,
        learning_rate=2e-3,
        eval_interval=6,
        eval_iters=2,
        device="cpu",
        dtype="fp32",
        compile="off",
        threads=1,
    )
