"""Files of ids in the cache folder: a header that says what they are, then the ids, to be mapped.

A file is used only if it is of the text, the tokenizer and the type asked for, and as it was written;
else it is made anew. It is written beside its place and renamed, so that nobody sees a part of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gptblock.errors import CorpusError
from gptblock.text.download import CACHE_VARIABLE, cache_folder

Ids = NDArray[np.unsignedinteger[Any]]
IdType = np.dtype[np.unsignedinteger[Any]]

FOLDER = "tokens"  # in the cache folder
_VERSION = 1
_HEADER = 4096  # bytes: JSON, filled up with spaces
_CHUNK = 2**24  # ids that are hashed at once
_ABANDONED = 3600.0  # seconds after which nobody writes on at an unfinished file

logger = logging.getLogger(__name__)


def cached_ids(record: Mapping[str, str], dtype: IdType, encode: Callable[[], Iterable[Ids]]) -> Ids:
    """The ids that `record` (sums, by what they are of) stands for, mapped; `encode` gives them in parts.

    The map is private: what is written to it changes no file. Raises CorpusError where the file cannot be
    written; what `encode` raises leaves nothing behind.
    """
    path = cache_folder() / FOLDER / ("-".join(value[:16] for value in record.values()) + ".ids")
    head: dict[str, object] = {"gptblock": "ids", "version": _VERSION, "dtype": dtype.name, **record}
    try:
        ids = _open(path, head, dtype)
        if ids is None:
            _write(path, head, encode())
            ids = _open(path, head, dtype)
    except OSError as error:
        raise CorpusError(
            f"the tokens of a large text are kept in {path.parent}, and that fails: {error}; set "
            f"{CACHE_VARIABLE} to a folder that may be written, with room for one to four bytes a token"
        ) from None
    if ids is None:
        raise CorpusError(f"{path} is not what was written to it a moment ago: is its disk in order?")
    return ids


def _open(path: Path, head: Mapping[str, object], dtype: IdType) -> Ids | None:
    """The ids of a file that is what `head` says and whole, or None."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        try:
            found = json.loads(file.read(_HEADER))
        except ValueError:
            found = None
    count = found.get("count") if isinstance(found, dict) else None
    sha256 = found.get("sha256") if isinstance(found, dict) else None
    is_whole = isinstance(count, int) and path.stat().st_size == _HEADER + count * dtype.itemsize
    if is_whole and count and found == {**head, "count": count, "sha256": sha256}:
        # "c": torch takes no read-only memory. Pages that are only read stay the file's.
        ids: Ids = np.memmap(path, dtype, mode="c", offset=_HEADER, shape=(count,))
        if _sum_of(ids) == sha256:
            return ids
    logger.warning("%s is damaged or of another version, and is made anew", path)
    return None


def _write(path: Path, head: Mapping[str, object], parts: Iterable[Ids]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _tidy(path.parent)
    number, name = tempfile.mkstemp(prefix=f".{path.name}.new-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            _fill(file, head, parts)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _fill(file: BinaryIO, head: Mapping[str, object], parts: Iterable[Ids]) -> None:
    digest, count = hashlib.sha256(), 0
    file.write(b" " * _HEADER)
    for part in parts:
        digest.update(part.data)
        file.write(part.data)
        count += len(part)
    file.seek(0)
    file.write(json.dumps({**head, "count": count, "sha256": digest.hexdigest()}).encode().ljust(_HEADER))


def _sum_of(ids: Ids) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(ids), _CHUNK):
        digest.update(ids[start : start + _CHUNK].data)
    return digest.hexdigest()


def _tidy(folder: Path) -> None:
    """Remove what writers that were killed have left."""
    for path in folder.glob(".*.new-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink()
