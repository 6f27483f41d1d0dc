"""Tokens to text while they come, ending at a stop string without ever showing a part of one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from gptblock.errors import InputError
from gptblock.text.tokenizer import Tokenizer


class TextStream:
    """The text of one continuation, token by token.

    The text ends before the stop string that is complete first; of two that are complete with the same
    character, before the longer. So it does not depend on how tokens cut the text. Raises InputError
    for an empty stop string, which would end every text at once.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(stop):
            raise InputError(f"stop must be a list of strings, none of them empty: got {stop!r}")
        self.stopped = False
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder()
        self._stop = tuple(stop)
        self._held = ""  # the end of the text, which may turn out to begin a stop string
        self._shown: list[str] = []
        self._ids: list[int] = []
        self._ends = [0]  # how many characters were certain before the first id, and after each

    @property
    def text(self) -> str:
        """All that push and finish have returned so far: the text without the stop string."""
        return "".join(self._shown)

    @property
    def ids(self) -> list[int]:
        """The ids of the text; where a stop string cut it, those whose text lies wholly before."""
        if not self.stopped:
            return list(self._ids)
        text = self.text
        ids = self._ids[: bisect_right(self._ends, len(text)) - 1]
        while not text.startswith(self._tokenizer.decode(ids)):
            ids.pop()  # begins a character that the text does not have
        return ids

    def push(self, token_id: int) -> str:
        """The text that one more token makes safe to show; nothing once a stop string has been met."""
        if self.stopped:
            return ""
        self._ids.append(token_id)
        piece = self._decoder.push(token_id)
        self._ends.append(self._ends[-1] + len(piece))
        return self._add(piece)

    def finish(self) -> str:
        """The text held back, which no token follows any more. A stop string may be met in it, too."""
        if self.stopped:
            return ""
        return self._add(self._decoder.finish()) + self._show(len(self._held))

    def _add(self, piece: str) -> str:
        """What of the held text and `piece` is safe to show."""
        self._held += piece
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if not found:
            return self._show(len(self._held) - self._possible_stop())
        self.stopped = True
        _, at = min(found)
        self._held = self._held[:at]
        return self._show(at)

    def _show(self, length: int) -> str:
        """Move the first `length` characters of the held text to the shown."""
        piece, self._held = self._held[:length], self._held[length:]
        self._shown.append(piece)
        return piece

    def _possible_stop(self) -> int:
        """The length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stop), default=1) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
