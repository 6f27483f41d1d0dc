"""The exported graph and its key/value cache: chunks of token ids in, logits out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gptblock.bundle.manifest import ModelMetadata
from gptblock.config import ModelConfig
from gptblock.errors import CorruptError, GptblockError, InputError, ProviderError
from gptblock.runtime.best import best
from gptblock.runtime.cache import Cache, Mirror, Slots
from gptblock.runtime.capture import one_line
from gptblock.runtime.processor import multiplies_bytes
from gptblock.runtime.session import Session
from gptblock.text.kinds import tokenizer_from_dict
from gptblock.text.subword import SubwordTokenizer
from gptblock.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]

# Where the processor has no instructions for products of bytes: tokens in a step from which it is faster to
# unpack each weight for its product, and rows from which it is faster to multiply weights unpacked before.
_LONG, _FEWEST_ROWS = 48, 4

# From so many tokens on, a device sends its largest logits alone; of them, one in so many at most.
_LARGE_VOCABULARY, _FEW = 4096, 8


class Scores:
    """Logits (..., V), or the largest of them with their tokens, ascending: 2 x (..., count)."""

    def __init__(self, logits: Logits, ids: Ids | None = None) -> None:
        self.logits = logits
        self.ids = ids
        self._parts: dict[int | tuple[int, int], Scores] = {}

    def at(self, index: int | tuple[int, int]) -> Scores:
        """Those of a row, or of one position in it."""
        if index not in self._parts:
            ids = None if self.ids is None else self.ids[index]
            self._parts[index] = Scores(self.logits[index], ids)
        return self._parts[index]


def cache_names(config: ModelConfig) -> dict[str, str]:
    """A graph's inputs that are its cache, in their order, each with the output that is the same buffer."""
    parts = [f"{i}.{part}" for i in range(config.n_layer) for part in ("key", "value")]
    names = {f"past_key_values.{part}": f"present.{part}" for part in parts}
    if config.token_shift:
        names |= {f"past_shift.{i}": f"present_shift.{i}" for i in range(config.n_layer)}
    return names


class Decoder:
    """An open session whose graph keeps the contract of `gptblock.export.graph`, or of `.fuse`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.metadata: ModelMetadata = session.metadata
        inputs = {argument.name: argument for argument in session.ort.get_inputs()}
        self.cache_names = cache_names(self.metadata.model)
        expected = ["input_ids", "past_length", "logits_positions", *self.cache_names]
        if list(inputs) != expected:
            raise CorruptError(
                f"the graph's inputs are {', '.join(inputs)}; "
                f"a model exported by gptblock has {', '.join(expected)}"
            )
        self.tokenizer: Tokenizer = tokenizer_from_dict(self.metadata.tokenizer)
        symbols, vocab_size = self.tokenizer.vocab_size, self.metadata.model.vocab_size
        if symbols > vocab_size or (
            symbols < vocab_size and not isinstance(self.tokenizer, SubwordTokenizer)
        ):
            raise CorruptError(
                f"the model has vocab_size {vocab_size} and its tokenizer {symbols} symbols: "
                f"the metadata was altered; export it again"
            )
        half = inputs[expected[-1]].type == "tensor(float16)"
        self.cache_dtype = np.float16 if half else np.float32
        self.is_fused = len(inputs[expected[3]].shape) == 4  # see gptblock.export.fuse
        self.slots = Slots(self, session.for_steps) if session.for_steps else None
        if self.is_fused and session.provider.name != "cpu":
            raise ProviderError(
                "this graph is for ONNX Runtime's CPU provider: run it with --provider cpu, or on "
                f"{session.provider.name} the one without .cpu or .batch in its name"
            )

    @property
    def block_size(self) -> int:
        return self.metadata.model.block_size

    def cache_shape(self, name: str, batch: int, capacity: int) -> tuple[int, ...]:
        """Of the graph's input `name`, which is one of `cache_names`."""
        model = self.metadata.model
        if self.is_fused and name.startswith("past_key_values."):
            return batch, model.n_head, capacity, model.head_size
        return batch, capacity, model.n_embd

    def step(self, cache: Cache, ids: Ids, positions: Ids, valid: Ids | None = None) -> Logits:
        """Read one chunk a row, and return the logits at `positions` of the chunk.

        ids: (B, T), right-padded with any id; positions: (B, K), each below T; valid: (B,), how many of
        the T ids each row really has (default: all). Returns float32 (B, K, vocab_size), which the
        cache's next step overwrites.
        """
        return self._run(cache, ids, positions, valid).fetch()

    def step_best(self, cache: Cache, ids: Ids, positions: Ids, valid: Ids | None, count: int) -> Scores:
        """As `step`, where the `count` largest logits of each position are enough.

        From a device with a large vocabulary these alone, (B, K, count); else those of all tokens.
        """
        logits = self._run(cache, ids, positions, valid)
        if self._best and count * _FEW <= self.metadata.model.vocab_size:
            try:
                found = best(self._best, logits.value, count)
            except Exception as error:  # ONNX Runtime's exceptions have no base of their own
                raise self._failed(error) from None
            if found:
                return Scores(*found)
        written = logits.fetch()
        if cache.scores is None or cache.scores.logits is not written:
            cache.scores = Scores(written)
        return cache.scores

    @functools.cached_property
    def _best(self) -> InferenceSession | None:
        is_large = self.metadata.model.vocab_size >= _LARGE_VOCABULARY
        return self.session.for_best() if is_large and self.session.for_best else None

    def _run(self, cache: Cache, ids: Ids, positions: Ids, valid: Ids | None) -> Mirror:
        batch, time = ids.shape
        assert batch == cache.batch, "a cache serves as many rows as it was made for"
        # What padding writes is overwritten by the row's next chunk, but it must fit.
        cache.reserve(time)
        alone = self.is_fused and batch > 1 and time > 1 and cache.length.any()  # see gptblock.export.fuse
        session = self._session_for(cache, 1 if alone else batch, time, positions.shape[1])
        try:
            if alone:
                one = (slice(i, i + 1) for i in range(batch))
                rows = [
                    cache.view(session, i).run(ids[row], positions[row]).host for i, row in enumerate(one)
                ]
                logits = Mirror(np.concatenate(rows), session.provider)
            else:
                logits = cache.view(session).run(ids, positions)
        except Exception as error:  # ONNX Runtime's exceptions have no base of their own
            raise self._failed(error) from None
        cache.advance(time if valid is None else valid)
        return logits

    def _session_for(self, cache: Cache, rows: int, time: int, kept: int) -> Session:
        """What runs `rows` of a cache fastest: by these numbers alone, so that a text can be repeated."""
        if cache.for_steps and time == kept == 1:
            return cache.for_steps
        if cache.batch >= self._many_rows and self._for_batches:
            return self._for_batches
        return (rows * time >= _LONG and self._for_prompts) or self.session

    @functools.cached_property
    def _many_rows(self) -> int:
        """Rows whose full caches take as much memory as the blocks' weights in float32, 12 C^2 a block."""
        model = self.metadata.model
        return max(_FEWEST_ROWS, -(-6 * model.n_embd // model.block_size))

    @functools.cached_property
    def _for_batches(self) -> Session | None:
        return self._unpacked(self.session.for_batches)

    @functools.cached_property
    def _for_prompts(self) -> Session | None:
        return self._unpacked(self.session.for_prompts)

    def _unpacked(self, open_session: Callable[[], Session] | None) -> Session | None:
        """One more session, where it pays. Of a fused graph only, whose weights are mapped: it has none."""
        is_slow = self.metadata.precision == "int8" and not multiplies_bytes()
        return open_session() if self.is_fused and is_slow and open_session else None

    def _failed(self, error: Exception) -> GptblockError:
        """A graph that opened and does not run: a library that CUDA loads late, or a fault of the graph."""
        said = one_line(error)
        if self.session.provider.name == "cuda":
            return ProviderError(
                f"CUDA failed while the model ran: {said}; gptblock doctor tells what is missing, "
                f"--provider cpu does without"
            )
        return CorruptError(f"the graph opens and does not run: {said}; export it again")

    def logits(self, ids: Ids, positions: Ids | None = None) -> Logits:
        """The logits at `positions` (K,), by default all T, read from scratch.

        ids (B, T) -> float32 (B, K, vocab_size). Raises InputError for a T of 0 or above block_size, and for
        ids outside the vocabulary.
        """
        batch, time = ids.shape
        if not 1 <= time <= self.block_size:
            raise InputError(
                f"input_ids must have 1 to {self.block_size} tokens (block_size) a row: got {time}"
            )
        vocab_size = self.metadata.model.vocab_size
        if batch and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            raise InputError(
                f"input_ids must be from 0 to {vocab_size - 1} (vocab_size {vocab_size}): "
                f"got {int(ids.min())} to {int(ids.max())}"
            )
        wanted = np.arange(time) if positions is None else positions
        if not batch:
            return np.zeros((0, len(wanted), vocab_size), np.float32)  # the graph takes no batch without rows
        return self.step(Cache(self, batch, time), ids, np.broadcast_to(wanted, (batch, len(wanted))))
