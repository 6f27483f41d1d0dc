"""Text to ids and back: what every tokenizer offers, and what they all refuse alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from gptblock.errors import InputError, UnknownCharacterError

Unknown = Literal["error", "skip"]
Ids = Iterable[int] | NDArray[np.integer]

SHOWN = 120  # characters of a vocabulary, or of a dictionary, that an error message lists

_SURROGATE = re.compile("[\ud800-\udfff]")


class TextDecoder(Protocol):
    """Ids to text while they come; what `push` has returned is never taken back.

    All that the pushes return and then `finish`, joined, is what the tokenizer's `decode` gives.
    """

    def push(self, token_id: int) -> str:
        """The text that one more id makes certain; "" while it may be a part of a character."""
        ...

    def finish(self) -> str:
        """The text held back, which no id follows any more: broken bytes as U+FFFD."""
        ...


class Tokenizer(Protocol):
    """What the other rooms need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """The largest id and one more."""
        ...

    def encode(self, text: str, unknown: Unknown = "error") -> NDArray[np.int64]:
        """The (N,) ids of a text.

        What the vocabulary cannot spell is an UnknownCharacterError, or left out with `unknown="skip"`.
        """
        ...

    def decode(self, ids: Ids) -> str:
        """The text of (N,) ids. Raises InputError for an id that is none."""
        ...

    def decoder(self) -> TextDecoder:
        """A fresh decoder for one text."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; `gptblock.text.kinds` reads them."""
        ...


def require_policy(unknown: Unknown) -> None:
    """Raise InputError unless `unknown` is one of the policies."""
    if unknown not in get_args(Unknown):
        raise InputError(f"unknown must be one of {', '.join(get_args(Unknown))}: got {unknown!r}")


def without_surrogates(text: str, unknown: Unknown) -> str:
    """`text` as something that UTF-8 can spell.

    A lone surrogate, such as an undecodable byte of a prompt, is an UnknownCharacterError or left out.
    """
    require_policy(unknown)
    found = _SURROGATE.search(text)
    if found is None:
        return text
    if unknown == "skip":
        return _SURROGATE.sub("", text)
    raise UnknownCharacterError(
        f"{named(found.group())} at position {found.start()} (the first is 0) is no character: "
        f"give the text as UTF-8; --unknown skip leaves it out"
    )


def as_ids(ids: Ids, vocab_size: int | None = None) -> NDArray[np.integer]:
    """The (N,) ids as an array. Raises InputError unless all are integers from 0 to below `vocab_size`."""
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"decode takes a sequence of integers: got {array.dtype} values of shape {array.shape}"
        )
    outside = array < 0
    if vocab_size is not None:
        outside |= array >= vocab_size
    if outside.any():
        most = "on" if vocab_size is None else f"to {vocab_size - 1}"
        raise InputError(
            f"{array[outside.argmax()]} at position {outside.argmax()} is no id; "
            f"this vocabulary has the ids 0 {most}"
        )
    return array


def named(character: str) -> str:
    """The character and its code point, safe for any console."""
    name = f"{character!a} (U+{ord(character):04X}"
    if "\udc80" <= character <= "\udcff":  # how Python passes on what it could not decode (PEP 383)
        return f"{name}: the byte 0x{ord(character) - 0xDC00:02X}, which is not UTF-8)"
    is_surrogate = _SURROGATE.match(character)
    return f"{name})" if is_surrogate else f"{name} {unicodedata.name(character, 'unnamed')})"
