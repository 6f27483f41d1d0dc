"""One id per character: the lecture's ids, the round trip, and what is said about other characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptblock.errors import ConfigError, InputError, UnknownCharacterError
from gptblock.text.char import CharTokenizer
from gptblock.text.kinds import tokenizer_from_dict

SHAKESPEARE = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

characters = st.characters(exclude_categories=["Cs"])
vocabularies = st.sets(characters, min_size=1, max_size=40).map(lambda found: "".join(sorted(found)))


def test_the_ids_on_tiny_shakespeare_are_the_lectures() -> None:
    tokenizer = CharTokenizer.train(SHAKESPEARE[::-1] * 2)
    assert tokenizer.vocab_size == 65
    # "hii there", as encoded in the lecture
    assert tokenizer.encode("hii there").tolist() == [46, 47, 47, 1, 58, 46, 43, 56, 43]
    assert tokenizer.encode("\n!3?AZaz").tolist() == [0, 2, 9, 12, 13, 38, 39, 64]
    assert tokenizer.decode([46, 47, 47, 1, 58, 46, 43, 56, 43]) == "hii there"
    assert tokenizer.encode("").dtype == tokenizer.encode("hii").dtype == np.int64


@given(st.data(), vocabularies)
def test_any_text_over_the_vocabulary_comes_back(data: st.DataObject, vocab: str) -> None:
    text = data.draw(st.text(alphabet=st.sampled_from(vocab)))
    tokenizer = tokenizer_from_dict(json.loads(json.dumps(CharTokenizer(vocab).to_dict())))
    ids = tokenizer.encode(text)
    assert ids.tolist() == [vocab.index(character) for character in text]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text
    decoder = tokenizer.decoder()
    assert [decoder.push(token) for token in ids.tolist()] == list(text)
    assert decoder.finish() == ""


@given(vocabularies, st.text(characters))
def test_skip_leaves_out_what_is_unknown_and_nothing_else(vocab: str, text: str) -> None:
    tokenizer = CharTokenizer(vocab)
    assert tokenizer.decode(tokenizer.encode(text, "skip")) == "".join(c for c in text if c in vocab)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zeusZ", "'Z' (U+005A LATIN CAPITAL LETTER Z) at position 4"),
        ("a\u2603b", "'\\u2603' (U+2603 SNOWMAN) at position 1"),
        ("a\U0001f600", "'\\U0001f600' (U+1F600 GRINNING FACE) at position 1"),
        ("\x7f", "'\\x7f' (U+007F unnamed) at position 0"),
        ("~", "'~' (U+007E TILDE)"),  # just above the vocabulary's last character
        ("caf\udce9", "'\\udce9' (U+DCE9: the byte 0xE9, which is not UTF-8) at position 3"),
        ("\ud800", "'\\ud800' (U+D800)"),
    ],
)
def test_an_unknown_character_is_named(text: str, expected: str) -> None:
    with pytest.raises(UnknownCharacterError) as caught:
        CharTokenizer("abcdefghijklmnopqrstuvwxyz").encode(text)
    message = str(caught.value)
    assert expected in message
    assert "26 characters are 'abcdefghijklmnopqrstuvwxyz'" in message
    assert "--unknown skip" in message
    assert message.isascii()
    assert "\n" not in message
    assert "accents" not in message


@pytest.mark.parametrize(
    ("vocab", "text", "hint"),
    [
        ("acf\u00e9", "cafe\u0301", "accents composed (Unicode's NFC)"),
        ("acef\u0301", "caf\u00e9", "accents decomposed (Unicode's NFD)"),
    ],
)
def test_the_other_spelling_of_accents_is_explained(vocab: str, text: str, hint: str) -> None:
    with pytest.raises(UnknownCharacterError) as caught:
        CharTokenizer(vocab).encode(text)
    assert hint in str(caught.value)


def test_a_long_vocabulary_is_not_listed_whole() -> None:
    tokenizer = CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 3000))))
    with pytest.raises(UnknownCharacterError, match=r"3000 characters are .*\.\.\.; ") as caught:
        tokenizer.encode("x")
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize("vocab", ["", "ba", "aab", "a\ud800", "\udce9"])
def test_a_vocabulary_that_is_none_is_refused(vocab: str) -> None:
    with pytest.raises(ConfigError):
        CharTokenizer(vocab)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([3], "3 at position 0 is no id; this vocabulary has the ids 0 to 2"),
        ([-1], "-1 at position 0"),
        ([0, 1, 7], "7 at position 2"),
        (np.array([0, -2, 9]), "-2 at position 1"),
        ([0.0, 1.0], "integers: got float64"),
        ([1.0], "integers: got float64"),
        ([True], "integers: got bool"),
        ([[0, 1]], r"of shape \(1, 2\)"),
    ],
)
def test_what_is_no_id_is_refused(ids: list[int], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        CharTokenizer("abc").decode(ids)


@pytest.mark.parametrize("ids", [[0, 2], (0, 2), iter([0, 2]), np.array([0, 2], dtype=np.uint8)])
def test_ids_come_in_any_sequence(ids: list[int]) -> None:
    assert CharTokenizer("abc").decode(ids) == "ac"


def test_no_ids_are_no_text() -> None:
    assert CharTokenizer("abc").decode([]) == ""


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="error, skip: got 'replace'"):
        CharTokenizer("abc").encode("abc", "replace")  # type: ignore[arg-type]


def test_the_vocabulary_does_not_depend_on_the_hash_seed() -> None:
    program = "from gptblock.text.char import CharTokenizer as C; print(C.train('zebra quagga').vocab)"
    vocabs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert vocabs == {" abegqruz\n"}


def test_a_megabyte_is_encoded_and_decoded_at_once() -> None:
    text = SHAKESPEARE * (1_000_000 // 65)
    tokenizer = CharTokenizer(SHAKESPEARE)
    ids = tokenizer.encode(text)

    assert min(timeit.repeat(lambda: tokenizer.encode(text), number=1, repeat=5)) < 0.1
    assert min(timeit.repeat(lambda: tokenizer.decode(ids), number=1, repeat=5)) < 0.1
