"""Shapes small enough to try everything on, and random numbers that are the same every time."""

from __future__ import annotations

import pytest
import torch

from gptblock.config import ModelConfig


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1337)


@pytest.fixture
def tiny() -> ModelConfig:
    """n_embd and head_size differ; torch's own init, whose weights are large enough to see effects."""
    return ModelConfig(vocab_size=65, block_size=16, n_layer=2, n_head=4, n_embd=32, init="torch")
