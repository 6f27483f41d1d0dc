"""Corpora: a text file, a folder of text files, or a text known by name; and their split in two.

The rule for text from files: UTF-8; one byte order mark at the start is dropped; CRLF and a lone CR
become LF. Everything else is kept as it is, NUL and U+2028 among it.
"""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gptblock.errors import CorpusError
from gptblock.text.download import Download, fetch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAMED_CORPORA: dict[str, str] = {
    "pydoc": "the language reference inside Python's own library; no download",
    "tinyshakespeare": "1.1 MB of Shakespeare's plays, the lecture's corpus; downloaded once",
}

TINYSHAKESPEARE = Download(
    file_name="tinyshakespeare.txt",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)

TRAIN_SHARE = 0.9  # of the tokens, from the start, as in the lecture; the rest is for validation


@dataclass(frozen=True)
class Corpus:
    """A text and where it comes from."""

    name: str
    text: str
    source: str  # the absolute path; of a named corpus, its URL, or its name where it has none


def load_corpus(data: str) -> Corpus:
    """The corpus that `data` names: a named corpus, else a file, else a folder.

    A name of NAMED_CORPORA always means that corpus; a file called so is reached as "./pydoc". Of a
    folder, every `**/*.txt` is read, in the order of the POSIX paths relative to it, joined by one
    newline.

    Raises CorpusError where there is no such text, or it cannot be read, decoded or is empty.
    """
    if data == "pydoc":
        return Corpus(data, _pydoc(), data)
    if data == "tinyshakespeare":
        text = decode_text(fetch(TINYSHAKESPEARE), TINYSHAKESPEARE.file_name)
        return Corpus(data, text, TINYSHAKESPEARE.url)
    path = Path(data)
    try:
        if not data or not path.exists():
            names = ", ".join(f"{name} ({line})" for name, line in NAMED_CORPORA.items())
            raise CorpusError(
                f"{data!r} is neither a file, nor a folder, nor a named corpus; the named corpora are {names}"
            )
        files = _text_files(path) if path.is_dir() else [path]
        texts = [decode_text(file.read_bytes(), str(file)) for file in files]
    except OSError as error:
        raise CorpusError(f"the text of {data!r} cannot be read: {error}") from None
    if not any(texts):
        raise CorpusError(f"{data!r} is empty: it holds no text to train on")
    return Corpus(path.resolve().name, "\n".join(texts), str(path.resolve()))


def split(ids: NDArray[np.int64], block_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
    name: str, ids: NDArray[np.int64], block_size: int, tokens: int, least: int = 1
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
    windows: NDArray[np.int64] = ids[starts[:, None] + np.arange(T + 1)]
    return windows


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


def decode_text(data: bytes, name: str) -> str:
    """The text of a file's bytes, by the rule at the top of this module."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name!r} is not UTF-8: byte 0x{data[error.start]:02X} at offset {error.start} does not fit; "
            f"save it as UTF-8{_encoding_hint(data)}"
        ) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _encoding_hint(data: bytes) -> str:
    mostly_zero = data.count(0) * 4 > len(data)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or mostly_zero:
        return " (it looks like UTF-16: iconv -f UTF-16 -t UTF-8)"
    return ""
