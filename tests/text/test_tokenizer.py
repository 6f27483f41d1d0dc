"""Which tokenizers there are: by name, from what they wrote, and what is none."""

from __future__ import annotations

import json
import sys

import pytest

from gptblock.config import TokenizerKind
from gptblock.errors import CorruptError, MissingExtraError
from gptblock.text.byte import ByteTokenizer
from gptblock.text.char import CharTokenizer
from gptblock.text.kinds import tokenizer_from_dict, train_tokenizer
from gptblock.text.subword import SubwordTokenizer

TEXT = "the cat sat on the mat\n" * 20


@pytest.mark.parametrize(
    ("kind", "expected", "vocab_size"),
    [("char", CharTokenizer, 11), ("byte", ByteTokenizer, 256), ("bpe", SubwordTokenizer, 260)],
)
def test_each_kind_comes_back_from_json(kind: TokenizerKind, expected: type, vocab_size: int) -> None:
    trained = train_tokenizer(kind, TEXT, bpe_vocab_size=260)
    read = tokenizer_from_dict(json.loads(json.dumps(trained.to_dict())))
    assert type(trained) is type(read) is expected
    assert trained.vocab_size == read.vocab_size == vocab_size
    assert read.to_dict() == trained.to_dict()
    ids = trained.encode("the cat")
    assert read.encode("the cat").tolist() == ids.tolist()
    assert read.decode(ids) == "the cat"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no tokenizer that this version knows"),
        ({"type": "bpe", "vocab": "abc"}, "no tokenizer that this version knows"),
        ({"type": "char"}, "no tokenizer that this version knows"),
        ({"type": "char", "vocab": ["a", "b"]}, "no tokenizer that this version knows"),
        ({"type": "char", "vocab": "ba"}, "the tokenizer is broken: a vocabulary is"),
        ({"type": "char", "vocab": ""}, "the tokenizer is broken: a vocabulary is"),
        ({"type": "char", "vocab": "ab", "merges": []}, "no tokenizer that this version knows"),
        ({"type": "byte", "vocab": "ab"}, "no tokenizer that this version knows"),
        ({"type": "subword"}, "no tokenizer that this version knows"),
        ({"type": "subword", "json": "{}"}, "no tokenizer that this version knows"),
        ({"type": "subword", "json": {}}, "the tokenizer is broken: this is no tokenizer.json"),
        ({"type": "subword", "json": {"model": {"type": "BPE"}}}, "the tokenizer is broken"),
    ],
)
def test_a_dictionary_that_is_not_understood_is_corrupt(values: dict[str, object], message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        tokenizer_from_dict(values)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    values = train_tokenizer("bpe", TEXT, bpe_vocab_size=260).to_dict()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for make in (lambda: tokenizer_from_dict(values), lambda: train_tokenizer("bpe", TEXT, 260)):
        with pytest.raises(MissingExtraError, match=r"pip install 'gptblock\[bpe\]'$") as caught:
            make()
        assert caught.value.exit_code == 4
    assert train_tokenizer("byte", TEXT, 260).decode([104, 105]) == "hi"
