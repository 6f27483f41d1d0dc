"""Subwords: the round trip, GPT-2's files, special tokens that nobody can type, and what is unknown."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, processors

from gptblock.errors import ConfigError, CorruptError, InputError, NotFoundError, UnknownCharacterError
from gptblock.text import subword
from gptblock.text.subword import SubwordTokenizer

TEXT = "the cat sat on the mat, and the dog sat on the log. caf\u00e9 \u2603\n" * 30
texts = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def trained() -> SubwordTokenizer:
    return SubwordTokenizer.train(TEXT, 300)


def of(library: Tokenizer) -> SubwordTokenizer:
    return SubwordTokenizer(json.loads(library.to_str()))


@given(text=texts | st.text("the cast\n\u00e9\u2603 \u3000\u0085"))
def test_any_text_comes_back(trained: SubwordTokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    decoder = trained.decoder()
    assert "".join(map(decoder.push, ids.tolist())) + decoder.finish() == text


def test_what_is_met_often_is_one_token(trained: SubwordTokenizer) -> None:
    assert 280 < trained.vocab_size <= 300
    assert len(trained.encode(" the")) == 1
    assert len(trained.encode("the cat sat on the mat")) < 12
    assert SubwordTokenizer.train("abcdefg", 300).vocab_size == 256  # no pair occurs twice
    assert len(trained.encode("")) == 0


def test_a_character_comes_once_it_is_whole() -> None:
    tokenizer = SubwordTokenizer.train("", 256)
    ids = tokenizer.encode("h\u00e9\u2603\U0001f600").tolist()
    decoder = tokenizer.decoder()
    assert [decoder.push(token) for token in ids] == [
        "h", "", "\u00e9", "", "", "\u2603", "", "", "", "\U0001f600",
    ]  # fmt: skip
    decoder = tokenizer.decoder()
    assert [decoder.push(token) for token in ids[:5]] == ["h", "", "\u00e9", "", ""]
    assert decoder.finish() == "\ufffd"
    assert tokenizer.decode(ids[:5]) == "h\u00e9\ufffd"


def test_training_is_the_same_every_time() -> None:
    program = (
        "import hashlib, json; from gptblock.text.corpus import load_corpus;"
        "from gptblock.text.subword import SubwordTokenizer as S;"
        "t = S.train(load_corpus('pydoc').text[:100_000], 600);"
        "print(hashlib.sha256(json.dumps(t.to_dict()).encode()).hexdigest())"
    )
    sums = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(sums) == 1


def test_parts_are_encoded_as_the_whole(trained: SubwordTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the cat  sat\n\non the\u2003mat's log \n end" * 20
    whole = trained.encode(text)
    again = SubwordTokenizer.train(TEXT, 300).to_dict()
    monkeypatch.setattr(subword, "_PART", 7)
    monkeypatch.setattr(subword, "_PIECE", 5)
    parts = list(trained.parts([text]))
    assert len(parts) > 50
    assert "".join(parts) == text
    assert trained.encode(text).tolist() == whole.tolist()
    assert SubwordTokenizer.train(TEXT, 300).to_dict() == again
    assert SubwordTokenizer.train(iter([TEXT[:100], TEXT[100:101], TEXT[101:]]), 300).to_dict() == again


@given(
    text=st.text(
        st.sampled_from("the 1.'s\n\t\r\u00e9\u3002\u2003\u0085\x1c\u3000")
        | st.characters(exclude_categories=["Cs"])
    ),
    size=st.integers(1, 9),
    block=st.integers(1, 20),
)
def test_cuts_are_where_a_word_ends_whatever_the_blocks(
    trained: SubwordTokenizer, text: str, size: int, block: int
) -> None:
    blocks = [text[start : start + block] for start in range(0, len(text), block)]
    parts = list(subword._parts(blocks, size))
    assert parts == list(subword._parts([text], size))
    assert "".join(parts) == text
    apart = [token for part in parts for token in trained.encode(part).tolist()]
    assert apart == trained.encode(text).tolist()


def test_gpt2s_files_mean_what_transformers_says(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    values = SubwordTokenizer.train(TEXT, 300).to_dict()["json"]
    assert isinstance(values, dict)
    vocab, merges = values["model"]["vocab"], values["model"]["merges"]
    vocab["<|endoftext|>"] = len(vocab)
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = "".join(f"{left} {right}\n" for left, right in merges)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + lines, encoding="utf-8")
    tokenizer = SubwordTokenizer.from_vocab(tmp_path / "vocab.json", tmp_path / "merges.txt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = GPT2Tokenizer(vocab=vocab, merges=[tuple(pair) for pair in merges])
    for text in (TEXT[:200], " the\n\n  the's 12 \u2603\U0001f600", ""):
        assert tokenizer.encode(text).tolist() == theirs.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == len(vocab)
    end = vocab["<|endoftext|>"]
    assert tokenizer.decode([end]) == "<|endoftext|>" == theirs.decode([end])
    assert end not in tokenizer.encode("a<|endoftext|>b")
    theirs.save_pretrained(tmp_path / "saved")
    saved = SubwordTokenizer.from_file(tmp_path / "saved" / "tokenizer.json")
    assert saved.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert saved.decode([end]) == "<|endoftext|>"
    assert end not in saved.encode("a<|endoftext|>b")


@pytest.mark.parametrize(
    "kind", ["unigram", "wordpiece", "word_ends", "words", "byte_fallback", "byte_level"]
)
def test_a_special_token_is_shown_and_never_typed(kind: str, libraries: dict[str, Tokenizer]) -> None:
    library = libraries[kind]
    special = {"byte_level": ["<|endoftext|>"]}.get(kind, ["<unk>", "<s>", "</s>"])
    tokenizer = of(library)
    for text in special:
        token = library.token_to_id(text)
        assert token in library.encode(f"the {text} the", add_special_tokens=False).ids
        assert token not in tokenizer.encode(f"the {text} the", "skip")
        assert tokenizer.decode([token]) == text
        assert text in tokenizer.decode([*tokenizer.encode("the").tolist(), token])


def test_nothing_is_added_cut_or_drawn(libraries: dict[str, Tokenizer]) -> None:
    """What a tokenizer.json may do to a text beyond cutting it into tokens."""
    plain = libraries["byte_fallback"]
    library = Tokenizer.from_str(plain.to_str())
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    library.enable_truncation(4)
    library.enable_padding(length=100)
    values = json.loads(library.to_str())
    values["model"]["dropout"] = 0.5
    tokenizer = SubwordTokenizer(values)
    expected = plain.encode("the cat sat on the mat").ids
    assert all(tokenizer.encode("the cat sat on the mat").tolist() == expected for _ in range(5))
    assert tokenizer.to_dict() == {"type": "subword", "json": values}


def test_words_that_were_added_are_text() -> None:
    """Such as GPT-NeoX's runs of spaces."""
    library = Tokenizer.from_str(json.dumps(SubwordTokenizer.train(TEXT, 300).to_dict()["json"]))
    library.add_special_tokens(["<|pad|>"])
    library.add_tokens([AddedToken("     ", normalized=False)])
    tokenizer = of(library)
    token = library.token_to_id("     ")
    assert token == tokenizer.vocab_size - 1
    assert token in tokenizer.encode("the     cat")
    assert tokenizer.decode(tokenizer.encode("the     cat")) == "the     cat"


@pytest.mark.parametrize("name", ["<\u00e9>", "a \u2603", "<|x|>"])
def test_a_special_token_of_any_characters_is_shown(name: str, libraries: dict[str, Tokenizer]) -> None:
    library = Tokenizer.from_str(libraries["byte_level"].to_str())
    library.add_special_tokens([name])
    assert of(library).decode([library.token_to_id(name)]) == name


def test_a_hole_in_the_ids_is_a_broken_character() -> None:
    tokenizer = of(Tokenizer(models.WordLevel({"a": 0, "b": 3})))
    assert tokenizer.vocab_size == 4
    assert tokenizer.decode([0, 1, 3, 7]) == "a \ufffd b \ufffd"
    decoder = tokenizer.decoder()
    assert [decoder.push(token) for token in (0, 1, 3, 7)] == ["a", " \ufffd", " b", " \ufffd"]
    trained = SubwordTokenizer.train("", 256)
    assert trained.decode([*trained.encode("a"), 256, *trained.encode("b")]) == "a\ufffdb"
    with pytest.raises(InputError, match="-1 at position 0 is no id"):
        trained.decode([-1])


def test_what_has_no_token_is_named_or_skipped(libraries: dict[str, Tokenizer]) -> None:
    tokenizer = of(libraries["word_ends"])
    with pytest.raises(UnknownCharacterError, match=r"'\\u4e00' \(U\+4E00 .*at position 5") as caught:
        tokenizer.encode("the c\u4e00t")
    assert "--unknown skip leaves it out" in str(caught.value)
    assert tokenizer.decode(tokenizer.encode("the c\u4e00t", "skip")) == "the ct"


def test_an_undecodable_byte_of_a_prompt_is_refused_or_skipped(trained: SubwordTokenizer) -> None:
    with pytest.raises(UnknownCharacterError, match=r"the byte 0xE9, which is not UTF-8\) at position 3"):
        trained.encode("caf\udce9")
    assert trained.decode(trained.encode("ca\ud800f\udce9", "skip")) == "caf"
    with pytest.raises(InputError, match="error, skip: got 'replace'"):
        trained.encode("abc", "replace")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": 3}'])
def test_a_file_that_is_no_tokenizer_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(CorruptError, match=r"tokenizer\.json cannot be read: "):
        SubwordTokenizer.from_file(path)
    with pytest.raises(NotFoundError, match=r"there is no file .*nowhere\.json"):
        SubwordTokenizer.from_file(tmp_path / "nowhere.json")
    with pytest.raises(CorruptError, match="cannot be read"):
        SubwordTokenizer.from_vocab(path, tmp_path / "nowhere.txt")


def test_no_tokens_are_no_tokenizer() -> None:
    with pytest.raises(ConfigError, match="one token at least"):
        of(Tokenizer(models.BPE()))
