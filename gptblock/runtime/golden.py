"""The golden vectors: what PyTorch said of a model, kept in the bundle to hold every runtime against.

A model is proved at some positions of its context. Of a small one these are all; of a large one, whose logits
alone would be hundreds of megabytes and whose proof would take hours, a spread that holds both ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptblock.config import ModelConfig
from gptblock.errors import CorruptError
from gptblock.runtime.decoder import Ids, Logits

# Parameters times tokens of context times positions, at most: 200 positions of the lecture's last model.
_EFFORT = 5e11
_FEWEST = 6


@dataclass(frozen=True)
class Golden:
    """What PyTorch said.

    input_ids: (N, block_size); positions: (K,), ascending; logits: float32 (N, K, vocab_size), at these;
    greedy_prompt: (P,); greedy_ids: (G,), the tokens that greedy generation appends to the prompt;
    unmoved: (1,), at how many positions another token moves no logit, as where a model ignores its input.
    """

    input_ids: Ids
    positions: Ids
    logits: Logits
    greedy_prompt: Ids
    greedy_ids: Ids
    unmoved: Ids

    def to_tensors(self) -> dict[str, np.ndarray]:
        return dict(vars(self))

    @classmethod
    def from_tensors(cls, tensors: dict[str, np.ndarray], model: ModelConfig) -> Golden:
        """Raises CorruptError where these are not the golden vectors of a model of that shape."""
        names = list(cls.__dataclass_fields__)
        if sorted(tensors) != sorted(names):
            raise CorruptError(
                f"golden vectors must be {', '.join(names)}: got {', '.join(sorted(tensors))}; "
                f"export it again (gptblock export RUN)"
            )
        golden = cls(**tensors)
        if not golden._fits(model):
            got = ", ".join(f"{name} {tensor.dtype} {tensor.shape}" for name, tensor in tensors.items())
            raise CorruptError(
                f"golden vectors must be of a model with block_size {model.block_size} "
                f"and vocab_size {model.vocab_size}: got {got}; export it again (gptblock export RUN)"
            )
        return golden

    def _fits(self, model: ModelConfig) -> bool:
        rows, seen = self.input_ids.shape[:1], self.positions
        return (
            self.input_ids.shape == (*rows, model.block_size)
            and self.logits.shape == (*rows, *seen.shape, model.vocab_size)
            and self.logits.dtype == np.float32
            and seen.dtype == self.unmoved.dtype == np.int64
            and seen.ndim == self.greedy_prompt.ndim == self.greedy_ids.ndim == self.unmoved.size == 1
            and seen.size > 0
            and 0 <= seen[0] <= seen[-1] == model.block_size - 1
            and bool((np.diff(seen) > 0).all())
            and all(
                ids.dtype == np.int64 and ids.size and 0 <= ids.min() <= ids.max() < model.vocab_size
                for ids in (self.input_ids, self.greedy_prompt, self.greedy_ids)
            )
        )

    def logits_of(self, ids: Ids, positions: Ids) -> Logits:
        """PyTorch's logits at `positions` of `ids` (B, T), which are the beginning of rows of input_ids."""
        batch, time = ids.shape
        assert np.array_equal(ids, self.input_ids[:batch, :time])
        return self.logits[:batch, np.searchsorted(self.positions, positions)]


def proof_positions(model: ModelConfig) -> Ids:
    """The positions that a model is proved at, (K,), ascending: all, or a spread that holds both ends."""
    block_size = model.block_size
    count = int(_EFFORT / (block_size * _parameters(model)))
    spread = np.linspace(0, block_size - 1, min(block_size, max(_FEWEST, count)))
    return np.unique(spread.round().astype(np.int64))


def proof_ids(model: ModelConfig, positions: Ids) -> Ids:
    """The token ids that a proof is made with: (N, block_size), the same on every machine."""
    few = 2 if len(positions) > _FEWEST else 1  # of GPT-2's 1024 tokens, one row is what memory allows
    rows = 3 if len(positions) == model.block_size else few
    return np.random.default_rng(1337).integers(0, model.vocab_size, size=(rows, model.block_size))


def _parameters(model: ModelConfig) -> int:
    """How many weights a token meets, biases and norms left out."""
    ff_matrices = 3 if model.feedforward == "swiglu" else 2
    block = 4 * model.n_embd + ff_matrices * model.ff_size
    return model.n_embd * (model.n_layer * block + model.vocab_size)
