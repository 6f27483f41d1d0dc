"""Replacing a file or a folder so that a reader, a kill or a power cut sees the old or the new, never a part.

What is being written lies beside its target as `.NAME.new-XXXXXXXX`, and its writer holds a lock on that:
the system drops the lock when the writer dies, so the next writer knows what it may remove. Renames and
removals beside one target happen one at a time, under a lock on the parent folder. Where there are no
such locks (Windows, some network file systems) nothing that another writer left is removed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gptblock.errors import InputError, NotFoundError

if sys.platform != "win32":
    import fcntl

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}  # old kernel, other file system


def write_file(path: Path, data: bytes | str) -> None:
    """Make `data` (text: as UTF-8, newlines untouched) the content of `path`, at once and durably.

    A link is followed. Raises OSError with the old content in place and nothing left behind.
    """
    path = Path(os.path.realpath(path))
    content = data.encode("utf-8") if isinstance(data, str) else data
    with ExitStack() as claim:
        with _locked(path.parent):
            _tidy(path)
            new = _beside(path)
            file = claim.enter_context(new.open("xb"))
            claim.enter_context(_locked(new))
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            file.close()  # Windows renames no open file
            new.replace(path)
        except BaseException:
            with suppress(OSError):  # a full disk fails to flush once more
                file.close()
            new.unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; on leaving, it becomes `target`, and what was there is removed.

    On an exception `target` stays as it was. A link is followed; missing parents are made. Of two
    processes at once the last to finish wins. Raises InputError where `target` is a file.
    """
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} must be a folder, or not exist: it is a file; name another place")
    target.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as claim:
        with _locked(target.parent):
            _tidy(target)
            work = _beside(target)
            work.mkdir()
            claim.enter_context(_locked(work))
        try:
            # One level down, so that who writes files into it can lock it in turn.
            content = work / "content"
            content.mkdir()  # with the permissions that the user's umask gives
            yield content
            _sync_tree(content)
            with _locked(target.parent):
                _move_in(content, target, aside=work / "old")
            _sync(target.parent)
        finally:
            with _locked(target.parent):
                _put_back(target)
            shutil.rmtree(work, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Put `target` back where a writer died after setting it aside; otherwise do nothing.

    Raises NotFoundError where it cannot be put back (a read-only parent), naming where it lies.
    """
    target = Path(os.path.realpath(target))
    if target.exists() or not (aside := _set_aside(target)):
        return
    try:
        with _locked(target.parent):
            _put_back(target)
    except OSError as error:
        raise NotFoundError(
            f"{target} is missing: its writer died after setting it aside, and it cannot be put back "
            f"({error.strerror}); rename {aside[0]} to it"
        ) from None


def _move_in(new: Path, target: Path, aside: Path) -> None:
    """Put `new` at `target`; what was there is then at `new`, or was set aside."""
    try:
        if _exchange(new, target):
            return
        target.rename(aside)
    except FileNotFoundError:
        pass  # nothing there yet
    new.rename(target)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step (Linux, renameat2), or return False where that is not to be had."""
    if sys.platform != "linux":
        return False
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # a C library older than the call
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _tidy(target: Path) -> None:
    """Put back what a dead writer set aside, then remove what dead writers left. Under the parent's lock."""
    _put_back(target)
    for work in _works(target):
        if not _is_claimed(work):
            if work.is_dir():
                shutil.rmtree(work, ignore_errors=True)
            else:
                work.unlink(missing_ok=True)


def _put_back(target: Path) -> None:
    """Under the parent's lock no writer is between its two renames, so a lone old folder's writer is dead."""
    if not target.exists() and (aside := _set_aside(target)):
        aside[0].rename(target)


def _set_aside(target: Path) -> list[Path]:
    return [work / "old" for work in _works(target) if (work / "old").is_dir()]


def _beside(target: Path) -> Path:
    """A name beside `target` that nobody uses, to write under."""
    return target.with_name(f".{target.name}.new-{os.urandom(4).hex()}")


def _works(target: Path) -> list[Path]:
    """What lies beside `target` under such names."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.new-[0-9a-f]{{8}}")
    try:
        return [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the one lock on `path`; where there are no locks, go on without."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_claimed(work: Path) -> bool:
    """Whether a living writer may hold the lock on `work`."""
    if sys.platform == "win32":
        return True
    try:
        descriptor = os.open(work, os.O_RDONLY)
    except OSError:  # gone by now, or another user's
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    """Have the disk hold every file of `folder`, and the folders themselves."""
    for root, _, names in os.walk(folder):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


def _sync(path: Path) -> None:
    """Have the disk hold `path`, a file or a folder. Windows syncs neither through a reading handle."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
