"""Corpora: a text file, a folder of text files, or a text known by name; and their split in two."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from gptblock.errors import CorpusError
from gptblock.text.decode import decode_blocks, decode_text
from gptblock.text.download import Download, fetch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Id = TypeVar("Id", bound=np.integer[Any])

NAMED_CORPORA: dict[str, str] = {
    "pydoc": "the language reference inside Python's own library; no download",
    "tinyshakespeare": "1.1 MB of Shakespeare's plays, the lecture's corpus; downloaded once",
}

TINYSHAKESPEARE = Download(
    file_name="tinyshakespeare.txt",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)

BLOCK = 2**20  # bytes, or characters, of a text that are held at once

TRAIN_SHARE = 0.9  # of the tokens, from the start, as in the lecture; the rest is for validation


@dataclass(frozen=True)
class TextSource:
    """A corpus to be read in blocks, as often as need be. See `open_corpus`."""

    data: str  # as it was asked for
    name: str
    source: str  # as in Corpus
    size: int  # in bytes, as it lies on the disk
    texts: tuple[Path | str, ...]  # files, and text that is there already

    def blocks(self) -> Iterator[str]:
        """The text, about BLOCK characters at a time; joined, they are that of `load_corpus`.

        Raises CorpusError where the text cannot be read or decoded; at its end, if it was empty.
        """
        held: list[str] = []  # small files together make a block
        length = 0
        for text in self._pieces():
            held.append(text)
            length += len(text)
            if length >= BLOCK:
                yield "".join(held)
                held, length = [], 0
        if held:
            yield "".join(held)

    def _pieces(self) -> Iterator[str]:
        is_empty = True
        try:
            for number, text in enumerate(self.texts):
                if number:
                    yield "\n"
                for piece in [text] if isinstance(text, str) else decode_blocks(_read(text), str(text)):
                    is_empty = is_empty and not piece
                    yield piece
        except OSError as error:
            raise CorpusError(f"the text of {self.data!r} cannot be read: {error}") from None
        if is_empty:
            raise CorpusError(f"{self.data!r} is empty: it holds no text to train on")


@dataclass(frozen=True)
class Corpus:
    """A text and where it comes from."""

    name: str
    text: str
    source: str  # the absolute path; of a named corpus, its URL, or its name where it has none


def load_corpus(data: str) -> Corpus:
    """The corpus that `data` names, as one text.

    Raises CorpusError as `open_corpus` does, or where the text cannot be decoded or is empty.
    """
    source = open_corpus(data)
    return Corpus(source.name, "".join(source.blocks()), source.source)


def open_corpus(data: str) -> TextSource:
    """The corpus that `data` names: a named corpus, else a file, else a folder.

    A name of NAMED_CORPORA always means that corpus; a file called so is reached as "./pydoc". Of a
    folder, every `**/*.txt` is read, in the order of the POSIX paths relative to it, joined by one
    newline.

    Raises CorpusError where there is no such text.
    """
    if data == "pydoc":
        return _known(data, _pydoc(), data)
    if data == "tinyshakespeare":
        text = decode_text(fetch(TINYSHAKESPEARE), TINYSHAKESPEARE.file_name)
        return _known(data, text, TINYSHAKESPEARE.url)
    path = Path(data)
    try:
        if not data or not path.exists():
            names = ", ".join(f"{name} ({line})" for name, line in NAMED_CORPORA.items())
            raise CorpusError(
                f"{data!r} is neither a file, nor a folder, nor a named corpus; the named corpora are {names}"
            )
        if not path.is_dir() and not path.is_file():  # a pipe, which can be read but once
            return _known(data, decode_text(path.read_bytes(), data), str(path.resolve()))
        files = _text_files(path) if path.is_dir() else [path]
        size = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise CorpusError(f"the text of {data!r} cannot be read: {error}") from None
    return TextSource(data, path.resolve().name, str(path.resolve()), size, tuple(files))


def split(ids: NDArray[Id], block_size: int) -> tuple[NDArray[Id], NDArray[Id]]:
    """The lecture's split of (N,) ids: the first 90% to train on, the rest to validate on, as views.

    Raises CorpusError where a part is shorter than the block_size + 1 tokens of one example.
    """
    boundary = int(TRAIN_SHARE * len(ids))
    parts = ids[:boundary], ids[boundary:]
    for name, part in zip(("training", "validation"), parts, strict=True):
        if len(part) <= block_size:
            raise CorpusError(
                f"the corpus is too short for block_size = {block_size}: of its {len(ids)} tokens, "
                f"{len(part)} are the {name} part, which needs at least {block_size + 1}; "
                f"use a longer text or a smaller block_size"
            )
    return parts


def spread_windows(
    name: str, ids: NDArray[np.integer], block_size: int, tokens: int, least: int = 1
) -> NDArray[np.int64]:
    """Windows (N, T + 1) evenly spread over ids (L,), to measure a loss on; T = min(block_size, L - 1).

    N * T is about `tokens`, and N at least `least`, where the text has as many. Raises CorpusError, naming
    the text, where it has no two tokens.
    """
    import numpy as np

    if len(ids) < 2:
        raise CorpusError(f"{name} is too short to measure a loss on: it has {len(ids)} token")
    T = min(block_size, len(ids) - 1)
    count = min(max(least, -(-tokens // T)), (len(ids) - 1) // T)
    starts = np.linspace(0, len(ids) - T - 1, count).astype(np.int64)  # (N,)
    windows: NDArray[np.int64] = ids[starts[:, None] + np.arange(T + 1)].astype(np.int64)
    return windows


def _known(name: str, text: str, source: str) -> TextSource:
    return TextSource(name, name, source, len(text.encode()), (text,))


def _read(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(BLOCK):
            yield block


def _pydoc() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise CorpusError(
            "the corpus pydoc is the module pydoc_data of Python's library, which this Python lacks; "
            "name a file or a folder of text of your own"
        ) from None
    return "\n".join(topics[name] for name in sorted(topics))


def _text_files(folder: Path) -> list[Path]:
    """The folder's `**/*.txt`, sorted by relative POSIX path. An unreadable subfolder is an OSError."""

    def fail(error: OSError) -> NoReturn:
        raise error

    # os.walk, because Path.rglob passes over folders that it may not read.
    files = [
        Path(place, name)
        for place, _, names in os.walk(folder, onerror=fail)
        for name in names
        if name.endswith(".txt")
    ]
    if not files:
        raise CorpusError(f"the folder {str(folder)!r} holds no *.txt, at any depth")
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())
