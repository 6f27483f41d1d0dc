"""Where text comes from, what is done to it, and what is said when it cannot be used."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from gptblock.errors import CorpusError
from gptblock.text import corpus
from gptblock.text.char import CharTokenizer
from gptblock.text.corpus import NAMED_CORPORA, Corpus, load_corpus, open_corpus, split
from gptblock.text.download import Download


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"one\ntwo\n", "one\ntwo\n"),
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"one\rtwo\r", "one\ntwo\n"),
        (b"one\r\r\ntwo", "one\n\ntwo"),
        (b"\xef\xbb\xbfone\n", "one\n"),
        (b"\xef\xbb\xbf\xef\xbb\xbfone\xef\xbb\xbf", "\ufeffone\ufeff"),  # only one, only at the start
        (b"a\0b", "a\0b"),
        ("a\u2028b\u2029c\x85d\x0ce\x0bf".encode(), "a\u2028b\u2029c\x85d\x0ce\x0bf"),
        ("h\u00e9\u2603\U0001f600".encode(), "h\u00e9\u2603\U0001f600"),
    ],
)
def test_the_rule_for_text(tmp_path: Path, data: bytes, text: str) -> None:
    file = tmp_path / "some text.txt"
    file.write_bytes(data)
    assert load_corpus(str(file)) == Corpus("some text.txt", text, str(file.resolve()))
    tokenizer = CharTokenizer.train(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"caf\xe9", "byte 0xE9 at offset 3"),
        (b"\xef\xbb\xbfcaf\xe9 au lait", "byte 0xE9 at offset 6"),  # the mark is counted
        (b"ok\xed\xa0\x80", "byte 0xED at offset 2"),  # a surrogate, spelled in UTF-8
        ("caf\u00e9".encode("utf-16"), "offset 0 does not fit; save it as UTF-8 (it looks like UTF-16"),
        ("caf\u00e9 au lait".encode("utf-16-be"), "it looks like UTF-16"),
    ],
)
def test_bytes_that_are_not_utf8_are_named(tmp_path: Path, data: bytes, expected: str) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(data)
    with pytest.raises(CorpusError) as caught:
        load_corpus(str(file))
    assert expected in str(caught.value)
    assert str(file) in str(caught.value)
    assert ("UTF-16" in expected) == ("UTF-16" in str(caught.value))


def test_a_folder_is_its_texts_in_the_order_of_their_paths(tmp_path: Path) -> None:
    texts = {"b.txt": "B\r", "a/z.txt": "Z", "a-b.txt": "-", "a/k/c.txt": "\ufeffC", "B.txt": "capital"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "notes.md").write_text("not this")
    (tmp_path / "folder.txt").mkdir()
    # "-" sorts before "/", and capitals before small letters
    assert load_corpus(str(tmp_path)) == Corpus(
        tmp_path.name, "capital\n-\nC\nZ\nB\n", str(tmp_path.resolve())
    )


def test_a_broken_file_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_bytes(b"good")
    (tmp_path / "bad.txt").write_bytes(b"b\xffd")
    with pytest.raises(CorpusError, match=r"bad\.txt.* is not UTF-8: byte 0xFF at offset 1"):
        load_corpus(str(tmp_path))


def test_a_link_to_nowhere_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_bytes(b"good")
    (tmp_path / "lost.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"cannot be read: .*lost\.txt"):
        load_corpus(str(tmp_path))


def test_a_folder_that_may_not_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.txt").write_bytes(b"good")
    (tmp_path / "locked").mkdir()

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:  # for root, who may read everything
        if path.endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CorpusError, match="locked"):
        load_corpus(str(tmp_path))


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("no")
    with pytest.raises(CorpusError, match=r"holds no \*\.txt, at any depth"):
        load_corpus(str(tmp_path))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_text_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.txt").write_bytes(data)
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(CorpusError, match="is empty"):
            load_corpus(str(path))


@pytest.mark.parametrize("data", ["nowhere.txt", "Pydoc", "", "nul\0", "x" * 5000, "caf\udce9"])
def test_what_is_nothing_is_refused_naming_the_corpora(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the current folder is not meant by an empty name")
    with pytest.raises(CorpusError) as caught:
        load_corpus(data)
    str(caught.value).encode()
    if len(data) < 5000:  # which is an error of the system's own
        assert f"{data!r} is neither a file, nor a folder, nor a named corpus" in str(caught.value)
        assert all(name in str(caught.value) for name in NAMED_CORPORA)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes with names are of POSIX")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """As a shell's <(command): what is read in two goes from a file comes but once from here."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"one\r\ntwo",))
    writer.start()
    source = open_corpus(str(tmp_path / "pipe"))
    writer.join()
    assert ["".join(source.blocks()) for _ in range(2)] == ["one\ntwo", "one\ntwo"]
    assert source.size == 7


def test_a_text_comes_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files together make one, and a large one several."""
    monkeypatch.setattr(corpus, "BLOCK", 10)
    for name, text in (("a", "12345678" * 4), ("b", ""), ("c", "abc"), ("d", "de")):
        (tmp_path / f"{name}.txt").write_text(text)
    source = open_corpus(str(tmp_path))
    blocks = list(source.blocks())
    assert "".join(blocks) == load_corpus(str(tmp_path)).text == "12345678" * 4 + "\n\nabc\nde"
    assert [len(block) for block in blocks] == [10, 10, 10, 10]
    assert source.size == 37


def test_pydoc_is_the_language_reference_in_the_library() -> None:
    found = load_corpus("pydoc")
    assert (found.name, found.source) == ("pydoc", "pydoc")
    assert found.text.startswith(topics[min(topics)])
    assert found.text.endswith("\n" + topics[max(topics)])
    assert len(found.text) == sum(map(len, topics.values())) + len(topics) - 1


def test_a_python_without_pydoc_data_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(CorpusError, match="pydoc_data"):
        load_corpus("pydoc")


def test_a_name_means_the_corpus_and_a_path_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pydoc").write_text("my own")
    assert load_corpus("pydoc").source == "pydoc"
    assert load_corpus("./pydoc").text == "my own"


def test_tinyshakespeare_comes_from_the_cache_by_the_same_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\xef\xbb\xbfFirst\r\nCitizen"
    (tmp_path / "small.txt").write_bytes(data)
    known = Download("small.txt", "http://127.0.0.1/never-asked", hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(corpus, "TINYSHAKESPEARE", known)
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path))
    assert load_corpus("tinyshakespeare") == Corpus("tinyshakespeare", "First\nCitizen", known.url)


def test_the_known_sum_is_a_sum() -> None:
    assert corpus.TINYSHAKESPEARE.file_name == "tinyshakespeare.txt"
    assert len(bytes.fromhex(corpus.TINYSHAKESPEARE.sha256)) == 32


@pytest.mark.parametrize(("tokens", "first"), [(1000, 900), (1003, 902), (1_115_394, 1_003_854)])
def test_the_split_is_the_lectures(tokens: int, first: int) -> None:
    train, validation = split(np.arange(tokens), block_size=8)
    assert train.tolist() == list(range(first))
    assert validation.tolist() == list(range(first, tokens))


@pytest.mark.parametrize(
    ("tokens", "block_size", "expected"),
    [
        (81, 8, None),  # 72 and 9
        (80, 8, "of its 80 tokens, 8 are the validation part, which needs at least 9"),
        (5, 8, "of its 5 tokens, 4 are the training part, which needs at least 9"),
        (0, 1, "0 are the training part, which needs at least 2"),
        (20, 1, None),  # 18 and 2
        (10, 1, "1 are the validation part, which needs at least 2"),
    ],
)
def test_a_short_corpus_says_what_it_has_and_needs(
    tokens: int, block_size: int, expected: str | None
) -> None:
    if expected is None:
        assert min(map(len, split(np.arange(tokens), block_size))) == block_size + 1
    else:
        with pytest.raises(CorpusError, match=f"block_size = {block_size}: .*{expected}"):
            split(np.arange(tokens), block_size)
