"""The key/value cache of one call, and how a graph reads and writes it in place."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gptblock.runtime.session import Provider, Session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue, RunOptions

    from gptblock.runtime.decoder import Decoder, Ids, Scores

# How many tokens a cache on the CPU grows by, at least: what a token of room costs each step, against a copy.
_GROWTH = 32

_MOST_SLOTS = 4  # sizes of batches that have a CUDA graph, each with the weights once more


def device_of(provider: Provider) -> tuple[str, int]:
    """Where a graph's arrays are, in ONNX Runtime's words."""
    return provider.name, provider.device_id


class Mirror:
    """An array of the host's, and the graph's of the same shape: on the CPU one memory, elsewhere two."""

    def __init__(self, host: np.ndarray, provider: Provider) -> None:
        from onnxruntime import OrtValue

        self.host = host
        self._is_shared = provider.name == "cpu"
        if self._is_shared:
            self.value: OrtValue = OrtValue.ortvalue_from_numpy(host)
        else:
            device, device_id = device_of(provider)
            self.value = OrtValue.ortvalue_from_shape_and_type(host.shape, host.dtype, device, device_id)
            self.send()

    def send(self) -> None:
        """Let the graph read what the host's array holds now."""
        if not self._is_shared:
            self.value.update_inplace(self.host)

    def fetch(self) -> np.ndarray:
        """What the graph has written; where there are two memories, an array of its own."""
        if self._is_shared:
            return self.host
        array: np.ndarray = self.value.numpy()
        return array if array.flags.owndata else array.copy()


class Cache:
    """Keys and values of the tokens that `batch` rows have read so far, `capacity` tokens at most.

    The graph reads and writes the same buffers, so a step copies nothing. The standard Attention reads a
    buffer to its end, so for it, on the CPU, they are hardly longer than what is in them, and grow as they
    fill. A cache belongs to one call: two calls on one decoder do not disturb each other.
    """

    def __init__(self, decoder: Decoder, batch: int, capacity: int) -> None:
        self.batch = batch
        self.capacity = capacity
        self._decoder = decoder
        self._room = 0  # tokens that the buffers have room for
        self._free = 0  # tokens that certainly fit into it yet, in each row
        self._buffers: dict[str, Mirror] = {}  # by the input that is one
        self._views: dict[tuple[InferenceSession, int | None], View] = {}
        self.scores: Scores | None = None  # of the last step: where steps write to one memory, of each
        slots = decoder.slots
        slot = slots.take(batch) if slots else None
        self.for_steps = slot.session if slot else None  # for one token of each row
        self._lengths = slot.lengths if slot else _lengths(decoder, batch)
        self.length: Ids = self._lengths.host  # (batch,) tokens that each row holds; the graph reads it
        self._counts = self.length.data  # the same, as Python's integers
        if slots and slot:
            self._room, self._buffers, self._views = slot.room, slot.buffers, slot.views
            weakref.finalize(self, slots.give_back, batch)

    def reserve(self, tokens: int) -> None:
        """Make room for so many more tokens in each row, of which there may be `capacity` in all."""
        self._free -= tokens
        if self._free >= 0:
            return
        longest = int(self.length.max()) + tokens
        assert longest <= self.capacity, "the chunk does not fit into the cache"
        if longest > self._room:
            self._grow(longest)
        self._free = self._room - longest

    def _grow(self, tokens: int) -> None:
        provider = self._decoder.session.provider
        self._room = self.capacity
        if not self._decoder.is_fused and provider.name == "cpu":
            self._room = min(self.capacity, tokens + max(_GROWTH, tokens // 8))
        grown = _buffers(self._decoder, self.batch, self._room)
        for name, before in self._buffers.items():
            grown[name].host[:, : before.host.shape[1]] = before.host
        self._buffers = grown
        self._views.clear()

    def advance(self, tokens: int | Ids) -> None:
        """Count so many more tokens in each row, or in row after row.

        One by one: after a step numpy's code for a sum is in none of the processor's caches, and takes as
        long as this does for two hundred rows.
        """
        if isinstance(tokens, int):
            for row in range(self.batch):
                self._counts[row] += tokens
        else:
            self.length += tokens

    def view(self, session: Session, row: int | None = None) -> View:
        """All rows or one, for a step of theirs; made once, so that the token loop binds nothing."""
        key = session.ort, row
        if key not in self._views:
            lengths, buffers = self._lengths, self._buffers
            if row is not None:
                provider = self._decoder.session.provider
                one = slice(row, row + 1)
                lengths = Mirror(lengths.host[one], provider)
                buffers = {name: Mirror(each.host[one], provider) for name, each in buffers.items()}
            self._views[key] = View(self._decoder, session, lengths, buffers)
        return self._views[key]


def _lengths(decoder: Decoder, batch: int) -> Mirror:
    return Mirror(np.zeros(batch, np.int64), decoder.session.provider)


def _buffers(decoder: Decoder, batch: int, room: int) -> dict[str, Mirror]:
    """Empty ones, by the input that is one."""
    shapes = {name: decoder.cache_shape(name, batch, room) for name in decoder.cache_names}
    # Zeros, not whatever the memory held: a NaN there would survive being masked. In one piece, for which
    # numpy asks for huge pages.
    whole = np.zeros(sum(map(math.prod, shapes.values())), decoder.cache_dtype)
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(whole, ends[:-1])
    return {
        name: Mirror(part.reshape(shape), decoder.session.provider)
        for part, (name, shape) in zip(parts, shapes.items(), strict=True)
    }


class View:
    """Rows of a cache, bound to a graph."""

    def __init__(
        self, decoder: Decoder, session: Session, lengths: Mirror, buffers: dict[str, Mirror]
    ) -> None:
        batch = len(lengths.host)
        self._ort, self._provider = session.ort, session.provider
        self._binding = session.ort.io_binding()
        self._options = _replaying(batch) if session.is_captured else None
        self._vocab_size = decoder.metadata.model.vocab_size
        self._sizes = (0, 0)  # T and K of what is bound
        self._lengths, self._buffers = lengths, buffers  # held, for no binding does
        self._binding.bind_ortvalue_input("past_length", lengths.value)
        for past, buffer in buffers.items():
            self._binding.bind_ortvalue_input(past, buffer.value)
            self._binding.bind_ortvalue_output(decoder.cache_names[past], buffer.value)

    def run(self, ids: Ids, positions: Ids) -> Mirror:
        """The logits (B, K, vocab_size) at `positions` (B, K) of a chunk `ids` (B, T), until the next run."""
        sizes = ids.shape[1], positions.shape[1]
        if sizes != self._sizes:
            self._make_arrays(len(ids), *sizes)
        self._lengths.send()
        self._ids.host[:] = ids
        self._ids.send()
        if ids.shape[1] > 1:  # else all are 0, as they were made
            self._positions.host[:] = positions
            self._positions.send()
        self._ort.run_with_iobinding(self._binding, self._options)
        return self._logits

    def _make_arrays(self, batch: int, time: int, kept: int) -> None:
        """What the graph reads and writes beside the cache. Bound once, they serve while the sizes stay."""
        self._sizes = time, kept
        self._ids = self._bind("input_ids", np.zeros((batch, time), np.int64))
        self._positions = self._bind("logits_positions", np.zeros((batch, kept), np.int64))
        logits = np.zeros((batch, kept, self._vocab_size), np.float32)
        self._logits = Mirror(logits, self._provider)
        self._binding.bind_ortvalue_output("logits", self._logits.value)

    def _bind(self, name: str, array: np.ndarray) -> Mirror:
        """Let the graph read its input `name` from `array`, as it was when sent last."""
        mirror = Mirror(array, self._provider)
        self._binding.bind_ortvalue_input(name, mirror.value)
        return mirror


def _replaying(batch: int) -> RunOptions:
    """To run the CUDA graph of so many rows: captured from what is bound at the first run, then replayed."""
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(batch))
    return options


class _Slot:
    """Buffers that stay where they are, as a CUDA graph needs, its session, and all views of them."""

    def __init__(self, decoder: Decoder, session: Session, batch: int) -> None:
        self.session = session
        self.room = decoder.block_size
        self.lengths = _lengths(decoder, batch)
        self.buffers = _buffers(decoder, batch, self.room)
        self.views: dict[tuple[InferenceSession, int | None], View] = {}
        self.is_free = True


class Slots:
    """One slot for each size of batch, for one call at a time; those that find none free do without."""

    def __init__(self, decoder: Decoder, open_session: Callable[[int], Session]) -> None:
        self._decoder = decoder
        self._open_session = open_session
        self._slots: dict[int, _Slot] = {}
        self._lock = threading.Lock()

    def take(self, batch: int) -> _Slot | None:
        """The slot for so many rows, emptied, if nobody has it. Raises what opening its session raises."""
        with self._lock:
            if batch not in self._slots and len(self._slots) < _MOST_SLOTS:
                self._slots[batch] = _Slot(self._decoder, self._open_session(batch), batch)
            slot = self._slots.get(batch)
            if slot is None or not slot.is_free:
                return None
            slot.is_free = False
        slot.lengths.host[:] = 0
        for buffer in slot.buffers.values():
            buffer.send()  # zeros: see _buffers
        return slot

    def give_back(self, batch: int) -> None:
        self._slots[batch].is_free = True
