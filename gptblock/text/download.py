"""Files that are downloaded once, checked by SHA-256 and kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gptblock.errors import CorpusError, MissingExtraError

CACHE_VARIABLE = "GPTBLOCK_CACHE"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Download:
    """A file known by its sum: what comes from `url` is used only if its SHA-256 is `sha256`."""

    file_name: str  # in the cache folder
    url: str
    sha256: str  # lower-case hex


def fetch(download: Download) -> bytes:
    """The file's bytes, from the cache folder or, failing that, from its URL; the sum always holds.

    A cached file with a wrong sum is not used: that is logged as a warning, and the file is downloaded
    again. A download that fails or has a wrong sum leaves nothing behind.

    Raises CorpusError where there is neither a good copy nor a good download, and MissingExtraError
    where pooch would be needed.
    """
    path = cache_folder() / download.file_name
    try:
        cached = path.read_bytes()
    except FileNotFoundError:
        return _downloaded(download, path, "is not in the cache")
    except OSError as error:
        raise CorpusError(
            f"the cached {download.file_name} cannot be read ({error}); "
            f"make it readable, or set {CACHE_VARIABLE} to another folder"
        ) from None
    if hashlib.sha256(cached).hexdigest() == download.sha256:
        return cached
    logger.warning("%s has a wrong SHA-256 and is not used; downloading it again", path)
    return _downloaded(download, path, "has a wrong SHA-256 in the cache, where it is not used,")


def cache_folder() -> Path:
    """The folder of downloaded files: GPTBLOCK_CACHE, or gptblock's own under the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    try:
        import pooch
    except ImportError:
        raise MissingExtraError("a corpus that is downloaded", "pooch", "train") from None
    return Path(pooch.os_cache("gptblock"))


def _downloaded(download: Download, path: Path, state: str) -> bytes:
    """The bytes from the URL, now also at `path`; `state` says what is wrong with the cached copy."""
    try:
        import pooch
    except ImportError:
        raise MissingExtraError(f"downloading {download.file_name}", "pooch", "train") from None
    try:
        with _silenced(pooch.get_logger()):
            pooch.retrieve(download.url, f"sha256:{download.sha256}", fname=path.name, path=path.parent)
        return path.read_bytes()
    except OSError as error:  # those of requests are among them
        failure = f"could not be downloaded from {download.url} ({_reason(error)})"
    except ValueError:  # the sum; pooch has deleted the file
        failure = f"what {download.url} sent has another SHA-256 than {download.sha256} and was deleted"
    raise CorpusError(
        f"{download.file_name} {state} and {failure}. Instead, name a file or a folder of text of your own, "
        f"use the corpus pydoc, which needs no download, or put the file at {path}"
    )


def _reason(error: OSError) -> object:
    """What happened, out of the wrappings of requests, which repeat the URL."""
    inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
    return getattr(inner, "reason", inner)


@contextlib.contextmanager
def _silenced(chatty: logging.Logger) -> Iterator[None]:
    """Nothing below an error is logged inside: pooch reports every download on stderr."""
    level = chatty.level
    chatty.setLevel(logging.ERROR)
    try:
        yield
    finally:
        chatty.setLevel(level)
