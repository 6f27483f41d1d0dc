"""What noisy libraries say on stdout and stderr, caught as text."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

# What ONNX Runtime puts around the sentence that matters: colours, codes, places in its source code.
_CLUTTER = re.compile(
    r"\x1b\[[0-9;]*m"
    r"|\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|/onnxruntime_src/\S+:\d+ .*?\) (?=[A-Z\[])"
    r"|\b\w+\.(?:cc|h):\d+ \w+ "
    r"| ; (?:GPU|hostname|file)=.*"
)
_LONGEST = 400  # characters of one line of somebody else's prose

_lock = threading.RLock()  # two captures that overlap without nesting would restore each other's files


@dataclass
class Noise:
    """What was said; complete once the capture has ended."""

    text: str = ""


@contextlib.contextmanager
def captured() -> Iterator[Noise]:
    """Keep the process silent: Python's streams, its warnings, and the descriptors that C code writes to.

    ONNX Runtime reports missing libraries there, and stdout is the product's. What other threads print
    meanwhile is caught as well, so keep it short.
    """
    noise = Noise()
    with _lock, _scratch() as file, warnings.catch_warnings(record=True, action="always") as warned:
        _flush()
        saved = {descriptor: _duplicate(descriptor) for descriptor in (1, 2)}
        try:
            for descriptor in saved:
                os.dup2(file.fileno(), descriptor)
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield noise
        finally:
            _flush()
            file.flush()
            for descriptor, original in saved.items():
                if original is None:
                    os.close(descriptor)
                else:
                    os.dup2(original, descriptor)
                    os.close(original)
            file.seek(0)
            noise.text = file.read() + "".join(f"{warning.message}\n" for warning in warned)


def one_line(said: object) -> str:
    """An error or a noise of ONNX Runtime as one line, without codes and places in its source code."""
    text = _CLUTTER.sub("", " ".join(str(said).split())).strip()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _scratch() -> TextIO:
    """A file nobody else sees, by lines; in memory where it can be, for a disk may be read-only."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("gptblock"), "w+", 1, encoding="utf-8", errors="replace")
    return tempfile.TemporaryFile("w+", 1, encoding="utf-8", errors="replace")


def _duplicate(descriptor: int) -> int | None:
    try:
        return os.dup(descriptor)
    except OSError:  # closed, as `>&-` leaves it
        return None


def _flush() -> None:
    """Empty the buffers, so that each text ends on its own side: Python's, and the C library's."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if sys.platform != "win32":
        ctypes.CDLL(None).fflush(None)
