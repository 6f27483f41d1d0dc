"""Huge pages for what a process reads over and over: weights, at every token.

With pages of 4 KB the processor looks up ten thousand addresses a token of a model of 43 MB, in a virtual
machine through two tables. Linux has pages of 2 MB too, on many machines for those who ask (madvise(2)).
"""

from __future__ import annotations

import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_HUGE = 2 << 20  # bytes
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # of Linux; the second since 6.1, older ones do it by and by
_SETTLING, _LONGEST = 64, 0.02  # steps before; seconds between two
_MOST = 128  # pages of weights that are worth it
_MAPS = Path("/proc/self/maps")


def anonymous_memory() -> list[range]:
    """The addresses of this process's memory that is not a file's, in order; none where it is not Linux."""
    if sys.platform != "linux":
        return []
    try:
        lines = _MAPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        if access.startswith("rw") and name in ([], ["[heap]"]):
            start, stop = (int(address, 16) for address in addresses.split("-"))
            found.append(range(start, stop))
    return found


def added(before: Iterable[range], after: Iterable[range]) -> list[range]:
    """What of `after` is in none of `before`."""
    parts = list(after)
    for old in before:
        rest = []
        for part in parts:
            rest.append(range(part.start, min(part.stop, old.start)))
            rest.append(range(max(part.start, old.stop), part.stop))
        parts = [part for part in rest if part]
    return parts


def huge_pages(memory: Iterable[range]) -> list[int]:
    """The numbers of the huge pages that `memory` touches."""
    return sorted({page for part in memory for page in range(part.start // _HUGE, -(-part.stop // _HUGE))})


class Settling:
    """Puts `memory` on huge pages once a session has made many steps, between steps.

    It begins after so many steps as it may take to win back what it takes, and then takes half as long as a
    step itself, so that no token is late. Of a large model it does nothing: what is read once a step and in
    order is read as fast from small pages.
    """

    def __init__(self, memory: Iterable[range]) -> None:
        pages = huge_pages(memory)
        self._is_over = not 0 < len(pages) <= _MOST
        self._pages = iter(pages)
        self._steps = 0
        self._last = 0.0  # when the last step began

    def step(self) -> None:
        """To be called before each step."""
        if self._is_over:
            return
        self._steps += 1
        now = time.perf_counter()
        end, self._last = now + min((now - self._last) / 2, _LONGEST), now
        if self._steps > _SETTLING:
            for page in self._pages:
                make_huge(page)
                if time.perf_counter() >= end:
                    break
            else:
                self._is_over = True


def make_huge(page: int) -> None:
    """Put what is on this page on a huge one, where the system has one: half a millisecond, or some more."""
    for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):  # refused where not all of the page is there
        _madvise()(page * _HUGE, _HUGE, advice)


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
