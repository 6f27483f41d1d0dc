"""What one reading of a corpus tells: its sum, its characters, its length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Survey:
    """A text, without the text."""

    sha256: str  # of the text as UTF-8
    characters: str  # each once, in the order of code points
    length: int  # in characters


def survey_text(blocks: Iterable[str], on_read: Callable[[int], None] | None = None) -> Survey:
    """The survey of a text that comes in blocks; `on_read` hears how many bytes of UTF-8 were read so far."""
    digest = hashlib.sha256()
    seen = np.zeros(0x110000, np.bool_)  # by code point
    ascii_seen = b""
    length = size = 0
    for block in blocks:
        data = block.encode()
        digest.update(data)
        if data.isascii():  # the faster way
            ascii_seen += bytes(set(data.translate(None, delete=ascii_seen)))
        else:
            seen[np.frombuffer(block.encode("utf-32-le"), "<u4")] = True
        length += len(block)
        size += len(data)
        if on_read:
            on_read(size)
    seen[list(ascii_seen)] = True
    return Survey(digest.hexdigest(), "".join(map(chr, np.flatnonzero(seen).tolist())), length)
