"""Token by token is what the library's decoders say of all tokens at once."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from gptblock.text.subword import SubwordTokenizer

KINDS = ["unigram", "wordpiece", "word_ends", "byte_fallback", "words", "byte_level", "duplicates_dropped"]


@pytest.mark.parametrize("kind", KINDS)
@given(numbers=st.lists(st.integers(0, 10**6) | st.integers(0, 300), max_size=14))
def test_the_pieces_are_the_librarys_text(
    kind: str, numbers: list[int], libraries: dict[str, Tokenizer]
) -> None:
    library = libraries[kind]
    tokenizer = SubwordTokenizer(json.loads(library.to_str()))
    ids = [number % tokenizer.vocab_size for number in numbers]
    expected = library.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids) == expected
    decoder = tokenizer.decoder()
    shown = ""
    for token in ids:
        shown += decoder.push(token)
        assert expected.startswith(shown)
    assert shown + decoder.finish() == expected


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "word_ends", "byte_fallback", "words"])
def test_words_come_as_they_are_spelt(kind: str, libraries: dict[str, Tokenizer]) -> None:
    """Nothing is held back but byte tokens."""
    tokenizer = SubwordTokenizer(json.loads(libraries[kind].to_str()))
    ids = tokenizer.encode("the cat sat on the log")
    decoder = tokenizer.decoder()
    so_far = [tokenizer.decode(ids[: n + 1]) for n in range(len(ids))]
    shown = ""
    for token, expected in zip(ids.tolist(), so_far, strict=True):
        shown += decoder.push(token)
        assert shown == expected
    assert decoder.finish() == ""


def test_byte_tokens_wait_for_the_end_of_their_run(libraries: dict[str, Tokenizer]) -> None:
    library = libraries["byte_fallback"]
    tokenizer = SubwordTokenizer(json.loads(library.to_str()))

    def pieces(*names: str) -> list[str]:
        decoder = tokenizer.decoder()
        return [*(decoder.push(library.token_to_id(name)) for name in names), decoder.finish()]

    snowman = ("<0xE2>", "<0x98>", "<0x83>")
    assert pieces("t", *snowman, "t") == ["t", "", "", "", "\u2603t", ""]
    assert pieces("t", *snowman) == ["t", "", "", "", "\u2603"]
    assert pieces(*snowman, "<0xE2>", "t") == ["", "", "", "", "\ufffd" * 4 + "t", ""]
    assert pieces("t", *snowman[:2]) == ["t", "", "", "\ufffd\ufffd"]


def test_a_decoder_that_may_change_what_was_shown_shows_all_at_the_end(
    libraries: dict[str, Tokenizer],
) -> None:
    library = Tokenizer.from_str(libraries["byte_fallback"].to_str())
    library.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("th", "T")])
    tokenizer = SubwordTokenizer(json.loads(library.to_str()))
    decoder = tokenizer.decoder()
    ids = [library.token_to_id(letter) for letter in "that"]
    assert [decoder.push(token) for token in ids] == ["", "", "", ""]
    assert decoder.finish() == "Tat" == library.decode(ids)


@pytest.mark.parametrize("kind", ["unigram", "byte_fallback"])
def test_a_long_text_takes_no_longer_by_token(kind: str, libraries: dict[str, Tokenizer]) -> None:
    tokenizer = SubwordTokenizer(json.loads(libraries[kind].to_str()))
    ids = tokenizer.encode("the cat sat on the mat " * 2000).tolist()
    decoder = tokenizer.decoder()
    started = time.perf_counter()
    text = "".join(map(decoder.push, ids)) + decoder.finish()
    assert time.perf_counter() - started < 2.0  # a quadratic one takes minutes
    assert text == tokenizer.decode(ids)
