"""Streamed text: all of it, as soon as it is safe, and never a part of a stop string."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gptblock.errors import InputError
from gptblock.runtime.stream import TextStream
from gptblock.text.byte import ByteTokenizer
from gptblock.text.char import CharTokenizer
from gptblock.text.tokenizer import Unknown


class PieceTokenizer:
    """Tokens of several characters each."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces
        self.vocab_size = len(pieces)

    def encode(self, text: str, unknown: Unknown = "error") -> NDArray[np.int64]:
        raise NotImplementedError

    def decode(self, ids: Iterable[int] | NDArray[np.integer]) -> str:
        return "".join(self.pieces[token] for token in ids)

    def decoder(self) -> PieceDecoder:
        return PieceDecoder(self)

    def to_dict(self) -> dict[str, object]:
        raise NotImplementedError


class PieceDecoder:
    def __init__(self, tokenizer: PieceTokenizer) -> None:
        self.push = tokenizer.pieces.__getitem__

    def finish(self) -> str:
        return ""


def stream(pieces: Iterable[str], stop: list[str]) -> tuple[list[str], TextStream]:
    """What each token shows, and finish at the end."""
    tokens = list(pieces)
    streamed = TextStream(PieceTokenizer(tokens), stop)
    shown = [streamed.push(token) for token in range(len(tokens))]
    return [*shown, streamed.finish()], streamed


@pytest.mark.parametrize(
    ("text", "stop", "shown", "stopped"),
    [
        ("abc", [], ["a", "b", "c", ""], False),
        ("abc", ["x"], ["a", "b", "c", ""], False),
        ("abc", ["b"], ["a", "", "", ""], True),
        ("abcd", ["bc"], ["a", "", "", "", ""], True),
        ("abd", ["bc"], ["a", "", "bd", ""], False),
        ("ab", ["bc"], ["a", "", "b"], False),  # held back to the end, then shown
        ("aaab", ["aab"], ["", "", "a", "", ""], True),  # the match begins inside a failed one
        ("xabab!", ["abac"], ["x", "", "", "", "ab", "ab!", ""], False),
        ("ababac", ["abac"], ["", "", "", "ab", "", "", ""], True),
        ("\n\nA", ["\n\n"], ["", "", "", ""], True),
        ("xyzab", ["zb", "yza"], ["x", "", "", "", "", ""], True),
        ("abcd", ["abcd", "bc"], ["", "", "a", "", ""], True),  # complete first
        ("xbc", ["bc", "xbc"], ["", "", "", ""], True),  # complete together: before the longer
    ],
)
def test_what_is_shown_and_when(text: str, stop: list[str], shown: list[str], stopped: bool) -> None:
    got, streamed = stream(text, stop)
    assert got == shown
    assert streamed.stopped is stopped
    assert streamed.text == "".join(shown)


def end_of(text: str, stop: list[str]) -> str:
    """The text before the stop string that is complete first, by a plain search."""
    for end in range(len(text) + 1):
        starts = [end - len(string) for string in stop if text[:end].endswith(string)]
        if starts:
            return text[: min(starts)]
    return text


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_the_text_does_not_depend_on_how_it_is_cut(pieces: list[str], stop: list[str]) -> None:
    text = "".join(pieces)
    expected = end_of(text, stop)
    for cut in (pieces, list(text), [text]):
        shown, streamed = stream(cut, stop)
        assert "".join(shown) == streamed.text == expected
        ends = [len("".join(cut[:n])) for n in range(len(cut) + 1)]
        assert streamed.ids == list(range(sum(end <= len(expected) for end in ends) - 1))
        assert streamed.stopped is any(string in text for string in stop)
        # What has been shown at any time is never more than the end that it comes to.
        for so_far in itertools.accumulate(shown):
            assert expected.startswith(so_far)


@given(st.text("ab\n", max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_no_more_is_held_back_than_must_be(text: str, stop: list[str]) -> None:
    streamed = TextStream(CharTokenizer("\nab"), stop)
    so_far = ""
    for character in text:
        streamed.push("\nab".index(character))
        so_far += character
        if streamed.stopped:
            break
        held = so_far.removeprefix(streamed.text)
        assert held == "" or any(string.startswith(held) and string != held for string in stop)


def test_nothing_comes_after_the_stop() -> None:
    streamed = TextStream(CharTokenizer("abc"), ["b"])
    assert [streamed.push(token) for token in (0, 1, 2, 0)] == ["a", "", "", ""]
    assert streamed.finish() == ""
    assert streamed.text == "a"


@pytest.mark.parametrize("stop", [[""], ["a", ""], "end"])
def test_a_stop_string_that_is_none_is_refused(stop: list[str]) -> None:
    with pytest.raises(InputError, match=re.escape(repr(stop))):
        TextStream(CharTokenizer("abc"), stop)


TEXT = "h\u00e9\u2603\U0001f600!"


def streamed_bytes(data: bytes, stop: list[str]) -> tuple[list[str], TextStream]:
    streamed = TextStream(ByteTokenizer(), stop)
    shown = [streamed.push(token) for token in data]
    return [*shown, streamed.finish()], streamed


@pytest.mark.parametrize(
    ("data", "stop", "shown", "kept"),
    [
        (TEXT.encode(), [], ["h", "", "\u00e9", "", "", "\u2603", "", "", "", "\U0001f600", "!", ""], 11),
        (TEXT.encode()[:8], [], ["h", "", "\u00e9", "", "", "\u2603", "", "", "\ufffd"], 8),  # cut short
        (b"a\xffb", [], ["a", "\ufffd", "b", ""], 3),
        (TEXT.encode(), ["\u2603"], ["h", "", "\u00e9", *[""] * 9], 3),
        (TEXT.encode(), ["\u2603!", "\U0001f600"], ["h", "", "\u00e9", *[""] * 6, "\u2603", "", ""], 6),
        (b"ab\xe2\x98", ["\ufffd"], ["a", "b", "", "", ""], 2),  # met when nothing follows any more
        (b"ab\xe2\x98", ["b\ufffd"], ["a", "", "", "", ""], 1),
        (b"ab\xe2", ["b!"], ["a", "", "", "b\ufffd"], 3),
    ],
)
def test_a_character_is_shown_whole(data: bytes, stop: list[str], shown: list[str], kept: int) -> None:
    got, streamed = streamed_bytes(data, stop)
    assert got == shown
    assert streamed.text == "".join(shown)
    assert streamed.ids == list(data[:kept])


@given(
    st.lists(st.sampled_from(b"ab\xe2\x98\x83\xff"), max_size=14).map(bytes),
    st.lists(st.text("ab\u2603\ufffd", min_size=1, max_size=3), max_size=3),
)
def test_bytes_stream_as_the_text_that_they_are(data: bytes, stop: list[str]) -> None:
    expected = end_of(data.decode("utf-8", "replace"), stop)
    shown, streamed = streamed_bytes(data, stop)
    assert "".join(shown) == streamed.text == expected
    for so_far in itertools.accumulate(shown):
        assert expected.startswith(so_far)
    # The ids spell the text, or as much of it as they can without what comes after.
    ids = bytes(streamed.ids)
    assert data.startswith(ids)
    spelt = ByteTokenizer().decode(list(ids))
    assert expected.startswith(spelt)
    if not streamed.stopped:
        assert (ids, spelt) == (data, expected)
    assert not any(
        expected.startswith(longer) and len(longer) > len(spelt)
        for n in range(len(ids) + 1, len(data) + 1)
        if (longer := ByteTokenizer().decode(list(data[:n])))
    )
