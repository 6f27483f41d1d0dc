"""One process trains in a run's folder at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gptblock.errors import RunExistsError

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep `folder` to this process. Raises RunExistsError where another trains there.

    The system lets go of the lock with the process, however that ends. On Windows there is none.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunExistsError(
                f"another process is training in {folder}: wait for it, stop it, or give another --out"
            ) from None
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
