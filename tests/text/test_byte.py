"""One id per byte: any text comes back, and a character is never shown in parts."""

from __future__ import annotations

import timeit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptblock.errors import InputError, UnknownCharacterError
from gptblock.text.byte import ByteTokenizer

texts = st.text(st.characters(exclude_categories=["Cs"]))
ids_of_bytes = st.binary(max_size=30) | st.lists(st.sampled_from(b"a\xe2\x98\x83\xf0\x9f\x80\xc3\xff"))

TOKENIZER = ByteTokenizer()


@given(texts)
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids.dtype == np.int64
    assert ids.tolist() == list(text.encode())
    assert TOKENIZER.decode(ids) == text


@given(ids_of_bytes)
def test_the_pieces_are_the_text_whatever_the_bytes(data: bytes | list[int]) -> None:
    decoder = TOKENIZER.decoder()
    pieces = [decoder.push(token) for token in data]
    assert "".join(pieces) + decoder.finish() == TOKENIZER.decode(list(data))
    assert TOKENIZER.decode(list(data)) == bytes(data).decode("utf-8", "replace")


def test_a_character_comes_once_it_is_whole() -> None:
    decoder = TOKENIZER.decoder()
    pieces = [decoder.push(token) for token in "h\u00e9\u2603\U0001f600".encode()]
    assert pieces == ["h", "", "\u00e9", "", "", "\u2603", "", "", "", "\U0001f600"]
    assert decoder.finish() == ""


def test_what_is_left_is_shown_as_broken() -> None:
    decoder = TOKENIZER.decoder()
    assert [decoder.push(token) for token in b"a\xe2\x98"] == ["a", "", ""]
    assert decoder.finish() == "\ufffd"


def test_an_undecodable_byte_of_a_prompt_is_refused_or_skipped() -> None:
    with pytest.raises(
        UnknownCharacterError, match=r"U\+DCE9: the byte 0xE9, which is not UTF-8\) at position 3"
    ):
        TOKENIZER.encode("caf\udce9")
    assert TOKENIZER.encode("ca\ud800f\udce9", "skip").tolist() == list(b"caf")
    with pytest.raises(InputError, match="error, skip: got 'replace'"):
        TOKENIZER.encode("abc", "replace")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([256], "256 at position 0 is no id.*0 to 255"), ([0, -1], "-1 at position 1"), ([1.5], "got float64")],
)
def test_what_is_no_id_is_refused(ids: list[int], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        TOKENIZER.decode(ids)
    if expected.startswith("256"):
        with pytest.raises(InputError, match=expected):
            TOKENIZER.decoder().push(ids[0])


def test_a_megabyte_is_encoded_and_decoded_at_once() -> None:
    text = "one h\u00e9\u2603" * 100_000
    ids = TOKENIZER.encode(text)
    assert len(ids) == 1_000_000
    assert min(timeit.repeat(lambda: TOKENIZER.encode(text), number=1, repeat=5)) < 0.1
    assert min(timeit.repeat(lambda: TOKENIZER.decode(ids), number=1, repeat=5)) < 0.1
