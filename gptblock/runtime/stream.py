"""Tokens to text while they come, ending at a stop string without ever showing a part of one."""

from __future__ import annotations

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
        self._stop = tuple(stop)
        self._held = ""  # the end of the text, which may turn out to begin a stop string
        self._shown: list[str] = []

    @property
    def text(self) -> str:
        """All that push and finish have returned so far: the text without the stop string."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """The text that one more token makes safe to show; nothing once a stop string has been met."""
        if self.stopped:
            return ""
        self._held += self._tokenizer.decode([token_id])
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            _, at = min(found)
            self._held = self._held[:at]
            return self.finish()
        return self._show(len(self._held) - self._possible_stop())

    def finish(self) -> str:
        """The text held back, which no token follows any more."""
        return self._show(len(self._held))

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
