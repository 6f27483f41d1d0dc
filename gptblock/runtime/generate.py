"""The token loop: rows of tokens through the decoder, one new token a row and step.

The context of a row is what the model reads to predict its next token: all of its tokens while they fit
into block_size. Beyond that the overflow policy decides, exactly as in `gptblock.model.gpt.GPT.generate`:

    slide    the last block_size tokens, as the lecture crops. With learned positions every position
             shifts, so nothing cached holds, and the window is read again for each token.
    rebase   the last max(1, block_size // 2) tokens become the context, which then grows as before: one
             longer read now and then, one token a step otherwise; not the same text as slide.
    stop     the row ends there.

A prompt longer than block_size starts from its last block_size tokens, or under `stop` ends at once.
Rows that share a cache form a lane; a row whose window is full leaves its lane. Under rebase it waits
until the lane is empty, so that all go on together and from then on fill their windows together.

With drafting, a step reads the last token of a row and some guesses at what follows it
(`gptblock.runtime.draft`). Each token is still sampled from the model's logits after the tokens before it,
with the row's own draws; a guess that equals it saves its step, one that does not is forgotten with all
after it. So drafting changes no token's distribution, and with one seed no token, except where two are
within rounding of each other: a step of another width sums in another order, as another batch does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import numpy as np

from gptblock.config import Overflow, SamplingConfig
from gptblock.runtime.cache import Cache
from gptblock.runtime.decoder import Decoder, Ids, Scores
from gptblock.runtime.draft import MAX_DRAFT, MAX_ROWS, PROMISING, Draft, worthwhile
from gptblock.sampling import largest, sample

FinishReason = Literal["length", "stop", "overflow"]
Drafting = Literal["auto", "on", "off"]  # where it promises to be faster, all that can be guessed, never


class Row:
    """One sequence being continued. Whoever sets `finish_reason` ends it.

    An empty prompt starts from token 0, as the lecture does; it is no part of prompt or continuation.
    """

    def __init__(self, prompt_ids: Ids, max_new_tokens: int, rng: np.random.Generator) -> None:
        self.prompt_tokens = len(prompt_ids)
        self.rng = rng
        self.draft: Draft | None = None
        self.drafted_tokens = 0  # read before they were certain
        self.accepted_tokens = 0  # of these, the ones that came true
        self.finish_reason: FinishReason | None = None if max_new_tokens else "length"
        self._start = max(1, self.prompt_tokens)
        self._ids = np.zeros(self._start + max_new_tokens, np.int64)
        self._ids[: self.prompt_tokens] = prompt_ids
        self.length = self._start
        self.last = int(self._ids[self.length - 1])  # the newest token

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
        self._ids[self.length] = self.last = token
        self.length += 1
        if self.draft:
            self.draft.learn(token)
        if not self.remaining:
            self.finish_reason = "length"


def decode(
    decoder: Decoder,
    rows: Sequence[Row],
    sampling: SamplingConfig,
    overflow: Overflow,
    drafting: Drafting = "off",
) -> Iterator[Row]:
    """Continue all rows until each has a finish_reason; yields a row whenever it has got a token.

    The taker may set the row's finish_reason then. `auto` drafts for up to MAX_ROWS rows, and greedy text
    only: where tokens are drawn, too few guesses come true.
    """
    block_size = decoder.block_size
    count = largest(sampling, decoder.metadata.model.vocab_size)
    sliding = _SlidingLane(decoder, count)
    if overflow == "stop":
        _finish([row for row in _unfinished(rows) if row.length > block_size])
    starting = _unfinished(rows)
    is_choosy = drafting == "auto"
    if drafting == "on" or (is_choosy and len(starting) <= MAX_ROWS and not sampling.temperature):
        for row in starting:
            row.draft = Draft(row.ids[-block_size:].tolist())
    lane = _CachedLane(decoder, starting, block_size, count, is_choosy) if starting else None
    waiting: list[Row] = []
    while lane or sliding.rows:
        is_alone = not sliding.rows
        for row, scores in chain(lane.read(is_alone) if lane else (), () if is_alone else sliding.read()):
            row.append(sample(scores.logits, sampling, row.ids, row.rng, scores.ids))
            yield row
        if sliding.rows:
            sliding.rows = _unfinished(sliding.rows)
        if full := lane.release() if lane else []:
            if overflow == "stop":
                _finish(full)
            elif overflow == "slide":
                sliding.admit(full)
            else:
                waiting += full
        if lane and not any(lane.seats):
            waiting = _unfinished(waiting)
            window = max(1, block_size // 2)
            used = lane.cache
            lane = _CachedLane(decoder, waiting, window, count, is_choosy, used) if waiting else None
            waiting = []


class _CachedLane:
    """Rows that read on together over one cache; a seat is empty once its row is done or gone."""

    def __init__(
        self,
        decoder: Decoder,
        rows: Sequence[Row],
        window: int,
        count: int,
        is_choosy: bool,
        used: Cache | None = None,
    ) -> None:
        """Starts every row from its last `window` tokens. Reads all that is drafted, unless it is choosy.

        Of each token's logits the `count` largest are wanted. A `used` cache of the same call is taken again,
        if it suits.
        """
        self.decoder = decoder
        self.count = count
        self.seats: list[Row | None] = list(rows)
        self.contexts = [row.ids[-window:] for row in rows]
        self.is_choosy = is_choosy
        self.drafts = any(row.draft for row in rows)
        self._positions = np.tile(np.arange(1 + MAX_DRAFT), (len(rows), 1))  # (rows, largest T)
        self._last_tokens = np.zeros((len(rows), 1), np.int64)
        self._last_token_of = self._last_tokens.reshape(-1).data  # the same, by seat
        longest = max(map(len, self.contexts)) + max(row.remaining for row in rows)
        capacity = min(decoder.block_size, longest)
        if used and used.batch == len(rows) and used.capacity >= capacity:
            used.length[:] = 0
            self.cache = used
        else:
            self.cache = Cache(decoder, len(rows), capacity)

    def read(self, is_alone: bool) -> Iterator[tuple[Row, Scores]]:
        """Each row with its next token's logits, once or more often.

        The taker appends a token to the row before it asks for more. Where the lane `is_alone`, and nobody
        waits for the taker to come back, it may read on until a row is finished or full.
        """
        if self.contexts or self.drafts:
            return self._read_once()
        return self._read_tokens(self.decoder.block_size - int(self.cache.length.max()) if is_alone else 1)

    def _read_tokens(self, steps: int) -> Iterator[tuple[Row, Scores]]:
        """As `read`, one token of each row a step.

        It touches little of Python, for a step leaves none of its code in the processor's caches.
        """
        rows = [(row, seat, (seat, 0)) for seat, row in enumerate(self.seats) if row]
        positions = self._positions[:, :1]
        for _ in range(steps):
            for row, seat, _ in rows:
                self._last_token_of[seat] = row.last
            scores = self.decoder.step_best(self.cache, self._last_tokens, positions, None, self.count)
            for row, _, place in rows:
                yield row, scores.at(place)
            if any(row.finish_reason for row, _, _ in rows):
                break

    def _read_once(self) -> Iterator[tuple[Row, Scores]]:
        """As `read`, one step: the contexts that rows start from, or last tokens and what is drafted."""
        if self.contexts:
            drafts: list[list[int]] = [[]] * len(self.seats)
            scores = self._read_contexts()
        else:
            drafts = self._draft()
            scores = self._read_drafts(drafts)
        for seat, (row, draft) in enumerate(zip(self.seats, drafts, strict=True)):
            if row:
                yield row, scores.at((seat, 0))
                if draft:
                    yield from self._accepted(seat, row, draft, scores.at(seat))

    def release(self) -> list[Row]:
        """Empty the seats of rows that are finished or full; returns the full ones, to go on elsewhere."""
        full = []
        for seat, row in enumerate(self.seats):
            is_full = int(self.cache.length[seat]) == self.decoder.block_size
            if row and (row.finish_reason or is_full):
                self.seats[seat] = None
                self.cache.length[seat] = 0  # an empty seat reads too, and must not run out of room
                full += _unfinished([row])
        return full

    def _read_contexts(self) -> Scores:
        valid = np.array([len(context) for context in self.contexts], np.int64)  # (rows,)
        ids = np.zeros((len(valid), int(valid.max())), np.int64)  # (rows, T), right-padded
        for i, context in enumerate(self.contexts):
            ids[i, : len(context)] = context
        self.contexts = []
        return self.decoder.step_best(self.cache, ids, valid[:, None] - 1, valid, self.count)  # of (rows, 1)

    def _accepted(
        self, seat: int, row: Row, draft: Sequence[int], scores: Scores
    ) -> Iterator[tuple[Row, Scores]]:
        """As `read`, for as long as the row's tokens are the drafted ones; forgets the rest."""
        accepted = 0
        while accepted < len(draft) and row.ids[-1] == draft[accepted] and not row.finish_reason:
            accepted += 1
            yield row, scores.at(accepted)
        row.drafted_tokens += len(draft)
        row.accepted_tokens += accepted
        self.cache.length[seat] -= len(draft) - accepted

    def _draft(self) -> list[list[int]]:
        """The tokens that each seat reads beyond its row's last one."""
        if self.is_choosy and not any(row and row.draft and row.draft.hits > PROMISING for row in self.seats):
            return [[]] * len(self.seats)
        most = min(MAX_DRAFT, self.cache.capacity - int(self.cache.length.max()) - 1)
        proposals = [
            row.draft.propose(min(most, row.remaining - 1)) if row and row.draft else ([], [])
            for row in self.seats
        ]
        drafted = worthwhile([likely for _, likely in proposals]) if self.is_choosy else most
        return [tokens[:drafted] for tokens, _ in proposals]

    def _read_drafts(self, drafts: Sequence[Sequence[int]]) -> Scores:
        """The last token of each row and its draft."""
        drafted = max(map(len, drafts))
        ids = np.zeros((len(drafts), 1 + drafted), np.int64)  # (rows, T)
        for seat, (row, draft) in enumerate(zip(self.seats, drafts, strict=True)):
            ids[seat, : 1 + len(draft)] = [row.last if row else 0, *draft]
        valid = np.array([1 + len(draft) for draft in drafts], np.int64) if drafted else None
        positions = self._positions[:, : 1 + drafted]
        return self.decoder.step_best(self.cache, ids, positions, valid, self.count)  # of (rows, T)


class _SlidingLane:
    """Rows beyond block_size that read their whole window again for every token."""

    def __init__(self, decoder: Decoder, count: int) -> None:
        self.decoder = decoder
        self.count = count
        self.rows: list[Row] = []
        self.cache: Cache | None = None

    def admit(self, rows: Sequence[Row]) -> None:
        """Take rows in. They draft no more: a window that shifts cannot verify several tokens at once."""
        for row in rows:
            row.draft = None
        self.rows += rows

    def read(self) -> Iterator[tuple[Row, Scores]]:
        """Each row with its next token's logits."""
        block_size = self.decoder.block_size
        windows = np.stack([row.ids[-block_size:] for row in self.rows])  # (rows, block_size)
        last = np.full((len(windows), 1), block_size - 1, np.int64)
        if self.cache is None or self.cache.batch != len(windows):
            self.cache = Cache(self.decoder, len(windows), block_size)
        self.cache.length[:] = 0
        scores = self.decoder.step_best(self.cache, windows, last, None, self.count)
        for i, row in enumerate(self.rows):
            yield row, scores.at((i, 0))


def _unfinished(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row.finish_reason]


def _finish(rows: Iterable[Row]) -> None:
    for row in rows:
        row.finish_reason = "overflow"
