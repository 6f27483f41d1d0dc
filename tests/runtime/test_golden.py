"""At which positions a model is proved."""

from __future__ import annotations

import numpy as np
import pytest

from gptblock.config import ModelConfig
from gptblock.runtime.golden import proof_ids, proof_positions

TINY = ModelConfig(vocab_size=65, block_size=16, n_layer=2, n_head=4, n_embd=32)
LECTURE = ModelConfig(vocab_size=65, block_size=256, n_layer=6, n_head=6, n_embd=384)
GPT2 = ModelConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768, tie_weights=True)


@pytest.mark.parametrize(
    ("model", "positions", "rows"),
    [
        (TINY, 16, 3),
        (TINY.replace(block_size=1), 1, 3),
        (TINY.replace(block_size=512), 512, 3),
        (LECTURE, 183, 2),
        (GPT2, 6, 1),
        (GPT2.replace(block_size=3), 3, 3),
    ],
)
def test_all_positions_of_a_small_model_and_a_spread_of_a_large_one(model, positions, rows):
    spread = proof_positions(model)
    assert (len(spread), spread[0], spread[-1]) == (positions, 0, model.block_size - 1)
    assert (np.diff(spread) > 0).all()
    ids = proof_ids(model, spread)
    assert ids.shape == (rows, model.block_size)
    assert 0 <= ids.min() <= ids.max() < model.vocab_size
    np.testing.assert_array_equal(ids, proof_ids(model, spread))
