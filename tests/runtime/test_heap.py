"""Huge pages: room in the heap that has asked for them, and that asking changes nothing else."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gptblock.runtime import heap, session
from gptblock.runtime.model import load

MB = 1 << 20
HUGE = 2 * MB
TRIM, MMAP = -1, -3


class FakeLibc:
    """Gives blocks one after another, as a heap does, from half of a huge page on."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.next = 100 * HUGE + MB

    def mallopt(self, option: int, value: int) -> int:
        self.calls.append(("mallopt", option, value))
        return 1

    def malloc(self, size: int) -> int:
        self.calls.append(("malloc", size))
        block, self.next = self.next, self.next + size
        return block

    def free(self, block: int) -> None:
        self.calls.append(("free", block))

    def madvise(self, start: int, size: int, advice: int) -> int:
        assert advice == 14  # MADV_HUGEPAGE
        self.calls.append(("madvise", start, size))
        return 0


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> FakeLibc:
    fake = FakeLibc()
    monkeypatch.setattr(heap, "_glibc", lambda: fake)
    return fake


def test_the_heap_gets_room_that_has_asked(libc):
    with heap.heap_on_huge_pages(20 * MB):
        inside = list(libc.calls)
    first, second = 100 * HUGE + MB, 100 * HUGE + 17 * MB
    assert inside == [
        ("mallopt", MMAP, 32 * MB),  # what is asked for is the heap's, and not mapped apart
        ("mallopt", TRIM, 512 * MB),  # and what is freed stays in it
        ("malloc", 16 * MB),
        ("malloc", 4 * MB),
        ("madvise", 100 * HUGE, 18 * MB),  # every page that the block touches
        ("madvise", 108 * HUGE, 6 * MB),
        ("free", first),
        ("free", second),
    ]
    assert libc.calls[len(inside) :] == [("mallopt", TRIM, 64 * MB)]


def test_the_heap_is_trimmed_again_after_an_error(libc):
    with pytest.raises(KeyError), heap.heap_on_huge_pages(4 * MB):
        raise KeyError
    assert libc.calls[-1] == ("mallopt", TRIM, 64 * MB)


def test_a_heap_that_has_no_more_is_asked_no_further(libc, monkeypatch):
    monkeypatch.setattr(libc, "malloc", lambda _: None)
    with heap.heap_on_huge_pages(20 * MB):
        pass
    assert {call[0] for call in libc.calls} == {"mallopt"}


@pytest.mark.parametrize("size", [0, HUGE - 1, 256 * MB + 1])
def test_not_for_less_than_a_page_nor_for_a_large_model(size, libc):
    with heap.heap_on_huge_pages(size):
        pass
    assert libc.calls == []


def test_nor_without_glibc(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with heap.heap_on_huge_pages(4 * MB):
        pass
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())  # another C library
    with heap.heap_on_huge_pages(4 * MB):
        pass


def test_a_session_asks_for_as_much_as_its_weights_take(tiny_bundle, monkeypatch):
    asked = []

    def heap_on_huge_pages(size):
        asked.append(size)
        return heap.heap_on_huge_pages(size)

    monkeypatch.setattr(session, "heap_on_huge_pages", heap_on_huge_pages)
    graph = tiny_bundle / "model.onnx"
    load(tiny_bundle, provider="cpu", threads=1)
    session.open_session(graph, provider="cpu", threads=1, lean=True)
    assert asked == [graph.stat().st_size, 0]


SCRIPT = """
import ctypes, re
from pathlib import Path
from gptblock.runtime.heap import heap_on_huge_pages

def huge():
    return 1024 * int(re.search(r"AnonHugePages: +([0-9]+)", Path("/proc/self/smaps_rollup").read_text())[1])

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
before = huge()
with heap_on_huge_pages(8 << 20):
    for _ in range(8):
        ctypes.memset(libc.malloc(1 << 20), 1, 1 << 20)
print(huge() - before)
"""


def test_the_system_gives_them():
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.is_file() or "[never]" in enabled.read_text():
        pytest.skip("this system has no huge pages")
    if not re.search("AnonHugePages", Path("/proc/self/smaps_rollup").read_text()):
        pytest.skip("this system does not tell which pages are huge")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    if done.stdout.strip() == "0":
        pytest.skip("this system has no huge pages left")
    assert int(done.stdout) >= HUGE


def test_what_is_in_memory_stays(tiny):
    array = np.random.default_rng(0).integers(0, 256, 4 * HUGE, np.uint8)
    copy = array.copy()
    ids = np.zeros((1, 16), np.int64)
    logits = tiny.logits(ids)
    with heap.heap_on_huge_pages(32 * MB):
        np.testing.assert_array_equal(tiny.logits(ids), logits)
    np.testing.assert_array_equal(array, copy)
