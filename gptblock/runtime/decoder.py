"""The exported graph and its key/value cache: chunks of token ids in, logits out."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gptblock.bundle.manifest import ModelMetadata
from gptblock.config import ModelConfig
from gptblock.errors import CorruptError, GptblockError, InputError, ProviderError
from gptblock.runtime.capture import one_line
from gptblock.runtime.pages import huge_pages, make_huge
from gptblock.runtime.processor import multiplies_bytes
from gptblock.runtime.session import Session
from gptblock.text.kinds import tokenizer_from_dict
from gptblock.text.subword import SubwordTokenizer
from gptblock.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]


# Tokens in a step of an int8 graph from which products of float32 are faster, where the processor has no
# instructions for those of integers.
_WIDE = 64

# After so many steps the weights go to huge pages, a few a step so that no token is late. That takes about
# what as many steps more save.
_SETTLING, _PAGES = 100, 4

# How many tokens a cache on the CPU grows by, at least: what a token of room costs each step, against a copy.
_GROWTH = 32


def cache_names(config: ModelConfig) -> dict[str, str]:
    """A graph's inputs that are its cache, in their order, each with the output that is the same buffer."""
    parts = [f"{i}.{part}" for i in range(config.n_layer) for part in ("key", "value")]
    names = {f"past_key_values.{part}": f"present.{part}" for part in parts}
    if config.token_shift:
        names |= {f"past_shift.{i}": f"present_shift.{i}" for i in range(config.n_layer)}
    return names


class Cache:
    """Keys and values of the tokens that `batch` rows have read so far, `capacity` tokens at most.

    The graph reads and writes the same buffers, so a step copies nothing. The standard Attention reads a
    buffer to its end, so for it, on the CPU, they are hardly longer than what is in them, and grow as they
    fill. A cache belongs to one call: two calls on one decoder do not disturb each other.
    """

    def __init__(self, decoder: Decoder, batch: int, capacity: int) -> None:
        self.batch = batch
        self.capacity = capacity
        self.length: Ids = np.zeros(batch, np.int64)  # (batch,) tokens that each row holds
        self._decoder = decoder
        self._room = 0  # tokens that the buffers have room for
        self._buffers: dict[str, np.ndarray] = {}  # by the input that is one
        self._views: dict[tuple[InferenceSession, int | None], _View] = {}

    def reserve(self, tokens: int) -> None:
        """Make room for rows of `tokens` tokens, of which `capacity` allows no more."""
        assert tokens <= self.capacity, "the chunk does not fit into the cache"
        if tokens <= self._room:
            return
        self._room = self.capacity
        if not self._decoder.is_fused and self._decoder.session.provider.name == "cpu":
            self._room = min(self.capacity, tokens + max(_GROWTH, tokens // 8))
        shapes = {
            name: self._decoder.cache_shape(name, self.batch, self._room)
            for name in self._decoder.cache_names
        }
        # Zeros, not whatever the memory held: a NaN there would survive being masked. In one piece, for which
        # numpy asks for huge pages.
        whole = np.zeros(sum(map(math.prod, shapes.values())), self._decoder.cache_dtype)
        at = 0
        for name, shape in shapes.items():
            buffer = whole[at : (at := at + math.prod(shape))].reshape(shape)
            if (before := self._buffers.get(name)) is not None:
                buffer[:, : before.shape[1]] = before
            self._buffers[name] = buffer
        self._views.clear()

    def view(self, ort: InferenceSession, row: int | None = None) -> _View:
        """All rows or one, for a step of theirs; made once, so that the token loop binds nothing."""
        if (ort, row) not in self._views:
            rows = slice(None) if row is None else slice(row, row + 1)
            buffers = {name: buffer[rows] for name, buffer in self._buffers.items()}
            self._views[ort, row] = _View(self._decoder, ort, self.length[rows], buffers)
        return self._views[ort, row]


class _View:
    """Rows of a cache, bound to the graph."""

    def __init__(
        self, decoder: Decoder, ort: InferenceSession, length: Ids, buffers: dict[str, np.ndarray]
    ) -> None:
        self.batch = len(length)
        self._ort = ort
        self._provider = decoder.session.provider
        self._binding = ort.io_binding()
        self._vocab_size = decoder.metadata.model.vocab_size
        # On the CPU these are numpy's memory, which no binding keeps alive.
        self._held: dict[str, tuple[np.ndarray, OrtValue]] = {}
        self._sizes = (0, 0)  # T and K of the arrays below
        self._bind("past_length", length)  # the cache's own, so always what it is
        for past, buffer in buffers.items():
            value = self._bind(past, buffer, self._provider.name)
            self._binding.bind_ortvalue_output(decoder.cache_names[past], value)

    def run(self, ids: Ids, positions: Ids) -> Logits:
        """The logits (B, K, vocab_size) at `positions` (B, K) of a chunk `ids` (B, T), until the next run."""
        sizes = ids.shape[1], positions.shape[1]
        if sizes != self._sizes:
            self._make_arrays(*sizes)
        self._ids[:], self._positions[:] = ids, positions
        self._ort.run_with_iobinding(self._binding)
        return self._logits

    def _make_arrays(self, time: int, kept: int) -> None:
        """What the graph reads and writes beside the cache. Bound once, they serve while the sizes stay."""
        self._sizes = time, kept
        self._ids: Ids = np.zeros((self.batch, time), np.int64)
        self._positions: Ids = np.zeros((self.batch, kept), np.int64)
        self._logits: Logits = np.zeros((self.batch, kept, self._vocab_size), np.float32)
        self._bind("input_ids", self._ids)
        self._bind("logits_positions", self._positions)
        self._binding.bind_ortvalue_output("logits", self._value("logits", self._logits))

    def _bind(self, name: str, array: np.ndarray, device: str = "cpu") -> OrtValue:
        """Let the graph read its input `name` from `array`, or from a copy on another device."""
        value = self._value(name, array, device)
        self._binding.bind_ortvalue_input(name, value)
        return value

    def _value(self, name: str, array: np.ndarray, device: str = "cpu") -> OrtValue:
        import onnxruntime

        device_id = 0 if device == "cpu" else self._provider.device_id
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array, device, device_id)
        self._held[name] = array, value
        return value


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
        self._steps = 0
        self._pages = iter(huge_pages(session.memory))  # those still to be asked for
        self.is_fused = len(inputs[expected[3]].shape) == 4  # see gptblock.export.fuse
        if self.is_fused and session.provider.name != "cpu":
            raise ProviderError(
                "this graph is for ONNX Runtime's CPU provider: run it with --provider cpu, or on "
                f"{session.provider.name} the one without .cpu in its name"
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
        batch, time = ids.shape
        assert batch == cache.batch, "a cache serves as many rows as it was made for"
        # What padding writes is overwritten by the row's next chunk, but it must fit.
        cache.reserve(max(cache.length.tolist()) + time)
        self._steps += 1
        if self._steps > _SETTLING:
            make_huge(itertools.islice(self._pages, _PAGES))
        alone = self.is_fused and batch > 1 and time > 1 and cache.length.any()  # see gptblock.export.fuse
        ort = self._session_for(time if alone else batch * time)
        try:
            if alone:
                rows = [cache.view(ort, i).run(ids[i : i + 1], positions[i : i + 1]) for i in range(batch)]
                logits = np.concatenate(rows)
            else:
                logits = cache.view(ort).run(ids, positions)
        except Exception as error:  # ONNX Runtime's exceptions have no base of their own
            raise self._failed(error) from None
        cache.length += time if valid is None else valid
        return logits

    def _session_for(self, tokens: int) -> InferenceSession:
        """What reads so many tokens fastest: by their number alone, so that a text can be repeated."""
        return (tokens >= _WIDE and self._wide) or self.session.ort

    @functools.cached_property
    def _wide(self) -> InferenceSession | None:
        """For steps of many tokens. Of a fused graph, whose weights are mapped: a second session has none."""
        is_slow = self.metadata.precision == "int8" and not multiplies_bytes()
        return self.session.unpack() if self.is_fused and is_slow and self.session.unpack else None

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
