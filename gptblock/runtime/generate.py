"""The token loop: rows of tokens through the decoder, one new token a row and step.

The context of a row is what the model reads to predict its next token: all of its tokens while they fit
into block_size. Beyond that the overflow policy decides, exactly as in `gptblock.model.gpt.GPT.generate`:

    slide    the last block_size tokens, as the lecture crops. With learned positions every position
             shifts, so nothing cached holds, and the window is read again for each token.
    rebase   the last max(1, block_size // 2) tokens become the context, which then grows as before: one
             longer read now and then, one token a step otherwise; not the same text as slide.
    stop     the row ends there.

A prompt longer than block_size starts from its last block_size tokens, or under `stop` ends at once.
Rows that share a cache form a lane; a row whose window is full leaves its lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from gptblock.config import Overflow, SamplingConfig
from gptblock.runtime.decoder import Cache, Decoder, Ids, Logits
from gptblock.sampling import sample

FinishReason = Literal["length", "stop", "overflow"]


class Row:
    """One sequence being continued. Whoever sets `finish_reason` ends it.

    An empty prompt starts from token 0, as the lecture does; it is no part of prompt or continuation.
    """

    def __init__(self, prompt_ids: Ids, max_new_tokens: int, rng: np.random.Generator) -> None:
        self.prompt_tokens = len(prompt_ids)
        self.rng = rng
        self.finish_reason: FinishReason | None = None if max_new_tokens else "length"
        self._start = max(1, self.prompt_tokens)
        self._ids = np.zeros(self._start + max_new_tokens, np.int64)
        self._ids[: self.prompt_tokens] = prompt_ids
        self.length = self._start

    @property
    def ids(self) -> Ids:
        """All tokens the row has: its start and the continuation."""
        return self._ids[: self.length]

    @property
    def new_ids(self) -> Ids:
        """The continuation."""
        return self._ids[self._start : self.length]

    @property
    def remaining(self) -> int:
        """How many tokens may still follow."""
        return len(self._ids) - self.length

    def append(self, token: int) -> None:
        self._ids[self.length] = token
        self.length += 1
        if not self.remaining:
            self.finish_reason = "length"


def decode(
    decoder: Decoder, rows: Sequence[Row], sampling: SamplingConfig, overflow: Overflow
) -> Iterator[Row]:
    """Continue all rows until each has a finish_reason; yields a row whenever it has got a token.

    The taker may set the row's finish_reason then.
    """
    block_size = decoder.block_size
    cached: list[_CachedLane] = []
    sliding = _SlidingLane(decoder)
    if overflow == "stop":
        _finish([row for row in _unfinished(rows) if row.length > block_size])
    starting = _unfinished(rows)
    if starting:
        cached.append(_CachedLane(decoder, starting, block_size))
    while cached or sliding.rows:
        lanes: list[_CachedLane | _SlidingLane] = [*cached, sliding]
        for lane in lanes:
            for row, logits in lane.read():
                row.append(sample(logits, sampling, row.ids, row.rng))
                yield row
        sliding.rows = _unfinished(sliding.rows)
        full = [row for lane in cached for row in lane.release()]
        cached = [lane for lane in cached if any(lane.seats)]
        if overflow == "stop":
            _finish(full)
        elif overflow == "slide":
            sliding.rows += full
        elif full:
            cached.append(_CachedLane(decoder, full, max(1, block_size // 2)))


class _CachedLane:
    """Rows that read on together over one cache; a seat is empty once its row is done or gone."""

    def __init__(self, decoder: Decoder, rows: Sequence[Row], window: int) -> None:
        """Starts every row from its last `window` tokens."""
        self.decoder = decoder
        self.seats: list[Row | None] = list(rows)
        self.contexts = [row.ids[-window:] for row in rows]
        longest = max(map(len, self.contexts)) + max(row.remaining for row in rows)
        self.cache = Cache(decoder, len(rows), min(decoder.block_size, longest))

    def read(self) -> Iterator[tuple[Row, Logits]]:
        """Each row with its next token's logits, (vocab_size,)."""
        logits = self._read_contexts() if self.contexts else self._read_last_tokens()
        for row, row_logits in zip(self.seats, logits, strict=True):
            if row:
                yield row, row_logits

    def release(self) -> list[Row]:
        """Empty the seats of rows that are finished or full; returns the full ones, to go on elsewhere."""
        full = []
        for seat, row in enumerate(self.seats):
            is_full = int(self.cache.length[seat]) == self.decoder.block_size
            if row and (row.finish_reason or is_full):
                self.seats[seat] = None
                full += _unfinished([row])
        return full

    def _read_contexts(self) -> Logits:
        valid = np.array([len(context) for context in self.contexts], np.int64)  # (rows,)
        ids = np.zeros((len(valid), int(valid.max())), np.int64)  # (rows, T), right-padded
        for i, context in enumerate(self.contexts):
            ids[i, : len(context)] = context
        self.contexts = []
        return self.decoder.step(self.cache, ids, valid[:, None] - 1, valid)[:, 0]

    def _read_last_tokens(self) -> Logits:
        ids = np.zeros((len(self.seats), 1), np.int64)
        for seat, row in enumerate(self.seats):
            if row:
                ids[seat] = row.ids[-1]
            else:
                self.cache.length[seat] = 0  # an empty seat reads too, and must not run out of room
        return self.decoder.step(self.cache, ids, np.zeros_like(ids))[:, 0]


class _SlidingLane:
    """Rows beyond block_size that read their whole window again for every token."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.rows: list[Row] = []

    def read(self) -> Iterator[tuple[Row, Logits]]:
        """Each row with its next token's logits, (vocab_size,)."""
        if not self.rows:
            return
        block_size = self.decoder.block_size
        windows = np.stack([row.ids[-block_size:] for row in self.rows])  # (rows, block_size)
        last = np.full((len(windows), 1), block_size - 1, np.int64)
        cache = Cache(self.decoder, len(windows), block_size)
        yield from zip(self.rows, self.decoder.step(cache, windows, last)[:, 0], strict=True)


def _unfinished(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row.finish_reason]


def _finish(rows: Iterable[Row]) -> None:
    for row in rows:
        row.finish_reason = "overflow"
