"""A corpus's ids, small and large: the same as those of its whole text, and encoded but once."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from gptblock.config import TokenizerKind
from gptblock.errors import CorpusError
from gptblock.text import cache, corpus, ids, subword
from gptblock.text.byte import ByteTokenizer
from gptblock.text.char import CharTokenizer
from gptblock.text.corpus import TextSource, load_corpus, open_corpus
from gptblock.text.ids import corpus_ids, id_type
from gptblock.text.kinds import train_tokenizer
from gptblock.text.survey import survey_text

TEXT = "".join(random.Random(1).choices("abc \u00e9\u2603\r\n", k=3000)) + "\r"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two texts, read in blocks of 17 bytes; and a cache of its own."""
    monkeypatch.setattr(corpus, "BLOCK", 17)
    monkeypatch.setattr(subword, "_PART", 50)
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    (tmp_path / "texts" / "b.txt").write_bytes(TEXT[::-1].encode())
    return tmp_path / "texts"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "MAPPED_FROM", 100)


def cached(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache").rglob("*"))


class Counting(CharTokenizer):
    """Counts the characters that it encodes."""

    encoded = 0

    def encode(self, text, unknown="error"):  # type: ignore[no-untyped-def]
        self.encoded += len(text)
        return super().encode(text, unknown)


def prepared(folder: Path) -> tuple[TextSource, object, Counting]:
    source = open_corpus(str(folder))
    survey = survey_text(source.blocks())
    return source, survey, Counting(survey.characters)


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
@pytest.mark.parametrize("is_large", [False, True])
def test_they_are_those_of_the_whole_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: TokenizerKind, is_large: bool
) -> None:
    text = load_corpus(str(folder)).text
    assert "\r" not in text
    assert "\ufeff" not in text
    tokenizer = train_tokenizer(kind, text, 300)
    whole = tokenizer.encode(text)
    if is_large:
        monkeypatch.setattr(ids, "MAPPED_FROM", 100)
    source = open_corpus(str(folder))
    assert train_tokenizer(kind, source.blocks(), 300).to_dict() == tokenizer.to_dict()
    found = corpus_ids(source, survey_text(source.blocks()), tokenizer)
    assert found.dtype == id_type(tokenizer.vocab_size) == (np.uint16 if kind == "bpe" else np.uint8)
    assert found.tolist() == whole.tolist()
    assert isinstance(found, np.memmap) == is_large
    assert len(cached(folder)) == (2 if is_large else 0)  # a small text leaves nothing behind


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_the_type_is_the_smallest(vocab_size: int, dtype: str) -> None:
    assert id_type(vocab_size).name == dtype


@pytest.mark.usefixtures("large")
def test_a_text_is_encoded_once(folder: Path) -> None:
    source, survey, tokenizer = prepared(folder)
    told: list[int] = []
    first = corpus_ids(source, survey, tokenizer, told.append)
    assert tokenizer.encoded == survey.length == told[-1] == len(first)
    assert told == sorted(told)
    assert len(told) > 100
    again = corpus_ids(*prepared(folder))
    assert again.tolist() == first.tolist()
    assert corpus_ids(source, survey, tokenizer).tolist() == first.tolist()
    assert tokenizer.encoded == survey.length


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def of_another_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 0', 1))


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00" * 3000)


def a_list(path: Path) -> None:
    path.write_bytes(b"[1]".ljust(5000))


def nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "damage", [flip_a_bit, cut_short, lengthen, of_another_version, garbage, a_list, nothing]
)
def test_what_is_damaged_is_made_anew(folder: Path, damage: object, caplog: pytest.LogCaptureFixture) -> None:
    source, survey, tokenizer = prepared(folder)
    expected = corpus_ids(source, survey, tokenizer).tolist()
    (path,) = (path for path in cached(folder) if path.is_file())
    good = path.read_bytes()
    assert callable(damage)
    damage(path)
    assert corpus_ids(source, survey, tokenizer).tolist() == expected
    assert tokenizer.encoded == 2 * survey.length
    assert path.read_bytes() == good
    assert "is damaged or of another version, and is made anew" in caplog.text


@pytest.mark.usefixtures("large")
def test_another_text_or_tokenizer_has_a_file_of_its_own(folder: Path) -> None:
    source, survey, tokenizer = prepared(folder)
    first = corpus_ids(source, survey, tokenizer)
    other = CharTokenizer(tokenizer.vocab + "\U0001f600")
    assert corpus_ids(source, survey, other).tolist() == first.tolist()
    assert corpus_ids(source, survey, ByteTokenizer()).tolist() != first.tolist()
    (folder / "b.txt").write_text("abc")
    changed = corpus_ids(*prepared(folder))
    assert changed.tolist() == tokenizer.encode(load_corpus(str(folder)).text).tolist()
    assert sum(path.is_file() for path in cached(folder)) == 4


@pytest.mark.usefixtures("large")
def test_writing_to_the_map_changes_no_file(folder: Path) -> None:
    source, survey, tokenizer = prepared(folder)
    first = corpus_ids(source, survey, tokenizer)
    expected = first.tolist()
    first[:] = 0
    assert corpus_ids(source, survey, tokenizer).tolist() == expected
    assert tokenizer.encoded == survey.length


@pytest.mark.parametrize("size", [100, 10**9])
def test_a_text_that_changes_meanwhile_is_refused_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(ids, "MAPPED_FROM", size)
    source, survey, tokenizer = prepared(folder)
    (folder / "b.txt").write_text("cba")
    with pytest.raises(CorpusError, match="was changed while it was read: leave it alone and try again"):
        corpus_ids(source, survey, tokenizer)
    assert not any(path.is_file() for path in cached(folder))


@pytest.mark.usefixtures("large")
def test_an_interruption_leaves_nothing(folder: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corpus_ids(*prepared(folder), stop)
    assert not any(path.is_file() for path in cached(folder))


@pytest.mark.usefixtures("large")
def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(folder: Path) -> None:
    place = folder.parent / "cache" / cache.FOLDER
    place.mkdir(parents=True)
    old, new = place / ".x.ids.new-old", place / ".y.ids.new-new"
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    corpus_ids(*prepared(folder))
    assert not old.exists()
    assert new.exists()


@pytest.mark.usefixtures("large")
def test_a_cache_that_cannot_be_written_says_what_to_do(folder: Path) -> None:
    (folder.parent / "cache").write_text("a file in its place")
    with pytest.raises(CorpusError, match="set GPTBLOCK_CACHE to a folder that may be written, with room"):
        corpus_ids(*prepared(folder))
