"""Huge pages for what a process reads over and over: weights, at every token.

With pages of 4 KB the processor looks up ten thousand addresses a token of a model of 43 MB, in a virtual
machine through two tables. Linux has pages of 2 MB too, on many machines for those who ask (madvise(2)).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_HUGE = 2 << 20  # bytes
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # of Linux; the second since 6.1, older ones do it by and by
_SETTLING, _PAGES = 100, 4  # after so many steps, so many pages a step
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
    """Puts `memory` on huge pages once a session has made many steps, a few pages a step: no token is late.

    That takes about what as many steps more save.
    """

    def __init__(self, memory: Iterable[range]) -> None:
        self._steps = 0
        self._pages = iter(huge_pages(memory))

    def step(self) -> None:
        """To be called with each step."""
        self._steps += 1
        if self._steps > _SETTLING:
            make_huge(itertools.islice(self._pages, _PAGES))


def make_huge(pages: Iterable[int]) -> None:
    """Put what is on these pages on huge ones, where the system has them. Half a millisecond to four each."""
    for page in pages:
        for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):  # refused where not all of the page is there
            _madvise()(page * _HUGE, _HUGE, advice)


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
