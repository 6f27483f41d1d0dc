"""Bytes to text: the rule, and that blocks change nothing, wherever they cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptblock.errors import CorpusError
from gptblock.text.decode import decode_blocks, decode_text


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def plain(data: bytes) -> str:
    """The rule as it is written, for a file that is held as a whole."""
    return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


SOME = st.sampled_from("a\r\n\ufeff\u00e9\u2603\U0001f600\0\u2028")


@given(text=st.text(SOME | st.characters(exclude_categories=["Cs"])), size=st.integers(1, 7))
def test_blocks_change_nothing(text: str, size: int) -> None:
    data = text.encode()
    expected = plain(data)
    assert decode_text(data, "it") == expected
    pieces = list(decode_blocks(cut(data, size), "it"))
    assert "".join(pieces) == expected
    assert "" not in pieces


@given(data=st.binary(max_size=40) | st.text().map(lambda text: text.encode()[:-1]), size=st.integers(1, 7))
def test_what_is_not_utf8_is_named_at_its_place_in_the_file(data: bytes, size: int) -> None:
    try:
        expected = plain(data)
    except UnicodeDecodeError as error:
        with pytest.raises(CorpusError) as caught:
            list(decode_blocks(cut(data, size), "it"))
        place = f"byte 0x{data[error.start]:02X} at offset {error.start} does not fit"
        assert f"'it' is not UTF-8: {place}; save it as UTF-8" in str(caught.value)
    else:
        assert "".join(decode_blocks(cut(data, size), "it")) == expected


def test_what_comes_before_the_broken_byte_is_given_first() -> None:
    pieces = decode_blocks([b"good\r", b"\nb\xffd"], "it")
    assert next(pieces) == "good"
    with pytest.raises(CorpusError, match="byte 0xFF at offset 7"):
        next(pieces)
