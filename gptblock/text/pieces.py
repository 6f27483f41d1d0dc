"""Tokens to text as the `tokenizers` library's decoders do, one token after the other.

A decoder there turns all tokens at once into a text: it strips a space at the start, gives a word's end
a space unless it is the last, or reads a run of byte tokens as UTF-8. What a token adds to the text then
depends on where it stands and on the token before it, and for most decoders on nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
# What these do to a token depends, of the others, at most on whether there is one before and one after.
_LOCAL = {"WordPiece", "Metaspace", "BPEDecoder", "Replace", "ByteFallback", "Strip", "Fuse"}
_ORDINARY = "a"  # a token that stands for all of the text before the latest


class PiecesDecoder:
    """One text, token by token; joined, it is `decode` of all tokens.

    `chain` is the decoder's JSON, from `chain_of`. Byte tokens are held back until their run ends, since
    a run that is not UTF-8 as a whole becomes one U+FFFD a byte. Where a decoder is none of those known
    to be local, everything is held back to the end.
    """

    def __init__(
        self,
        name_of: Callable[[int], str],
        decode: Callable[[list[str]], str],
        chain: Sequence[Mapping[str, Any]],
    ) -> None:
        self._name_of = name_of
        self._decode = decode
        self._is_local = _is_local(chain) and decode([_ORDINARY]) != ""
        self._has_bytes = any(link["type"] == "ByteFallback" for link in chain)
        self._window: list[str] = []  # the tokens of whose text `_shown` is the part that was returned
        self._shown = ""

    def push(self, token_id: int) -> str:
        name = self._name_of(token_id)
        self._window.append(name)
        if not self._is_local or (self._has_bytes and _BYTE.fullmatch(name)):
            return ""
        piece = self.finish()
        if self._shown:  # so what is done to the start of a text is done
            self._window = [_ORDINARY, name]
            self._shown = self._decode(self._window)
        return piece

    def finish(self) -> str:
        if not self._window:
            return ""
        before, self._shown = self._shown, self._decode(self._window)
        return self._shown[len(before) :]


def chain_of(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The decoders that a decoder's JSON applies one after the other."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [link for inner in decoder["decoders"] for link in chain_of(inner)]
    return [decoder]


def _is_local(chain: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a token's text depends on its place and its neighbour alone."""
    kinds = [link["type"] for link in chain]
    if not set(kinds) <= _LOCAL:
        return False
    fused = (
        chain[kinds.index("Fuse") + 1 :] if "Fuse" in kinds else []
    )  # these see the whole text as one token
    return all(link["type"] == "Strip" and link["stop"] == 0 for link in fused)
