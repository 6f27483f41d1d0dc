"""The heap of glibc, where ONNX Runtime has its weights: huge pages for them, and giving back what is free.

With pages of 4 KB the processor looks up ten thousand addresses a token of a model of 43 MB, in a virtual
machine through two tables. Linux has pages of 2 MB too, on many machines only for memory that asks for them
before it is used (madvise(2)). ONNX Runtime takes the memory for weights from the heap of glibc and does not
ask. So before it opens a graph, the heap gets room for them, which has asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

_HUGE = 2 << 20  # bytes of a page
_MOST = 256 << 20  # bytes of weights that it pays for: of more, pages are read one after another anyway
_BLOCK = 16 << 20  # bytes that the heap is asked for at once, which it maps apart from _LARGEST on
_LARGE, _LARGEST = 1 << 20, 32 << 20  # bytes; as far as glibc raises its own idea of what to map apart
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MADV_HUGEPAGE = 14  # of Linux


@contextlib.contextmanager
def heap_on_huge_pages(size: int) -> Iterator[None]:
    """Let `size` bytes that are allocated inside lie on huge pages, where the system has them to give.

    Does nothing for less than a page, for a size that it does not pay for, and without glibc. What is left
    over goes back to the system with the heap's next trim. glibc's settings are then those that it comes to
    by itself in a program that frees a block of 32 MB.
    """
    libc = _glibc() if _HUGE <= size <= _MOST else None
    if libc is None:
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MOST)  # keeps what is freed here
    sizes = [min(_BLOCK, size - start) for start in range(0, size, _BLOCK)]
    blocks = [(block, part) for part in sizes if (block := libc.malloc(part))]
    for block, part in blocks:
        first, last = block // _HUGE, -(-(block + part) // _HUGE)
        libc.madvise(first * _HUGE, (last - first) * _HUGE, _MADV_HUGEPAGE)
    for block, _ in blocks:
        libc.free(block)
    try:
        yield
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST)


def return_memory() -> None:
    """Give the system back what loading took and freed, which glibc keeps: a third of the file at 43 MB."""
    if libc := _glibc():
        libc.malloc_trim(0)


def return_large_blocks() -> None:
    """Have glibc map what is large, and so give it back when freed, instead of raising its idea of large."""
    if libc := _glibc():
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not (hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")):
        return None
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
