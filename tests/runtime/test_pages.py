"""Huge pages: which memory, and that asking for them changes nothing else."""

from __future__ import annotations

import mmap
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gptblock.runtime import pages
from gptblock.runtime.cache import Cache
from gptblock.runtime.decoder import Decoder

HUGE = 2 << 20


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [range(2, 9)], [range(2, 9)]),
        ([range(2, 9)], [range(2, 9)], []),
        ([range(2, 5)], [range(2, 9)], [range(5, 9)]),  # grown at its end
        ([range(5, 9)], [range(2, 9)], [range(2, 5)]),  # and at its start
        ([range(4, 6)], [range(2, 9)], [range(2, 4), range(6, 9)]),
        ([range(2, 9)], [range(3, 4), range(20, 30)], [range(20, 30)]),
        ([range(3), range(8, 40)], [range(2, 9)], [range(3, 8)]),
    ],
)
def test_what_is_new_of_memory(before, after, expected):
    assert pages.added(before, after) == expected


def test_only_anonymous_memory_that_can_be_written(tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    maps.write_text(
        "00400000-00500000 r-xp 00000000 fe:00 12 /usr/bin/python3\n"
        "00600000-00700000 rw-p 00000000 fe:00 12 /usr/bin/python3\n"
        "01000000-01200000 rw-p 00000000 00:00 0                          [heap]\n"
        "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n"
        "7f0000400000-7f0000500000 ---p 00000000 00:00 0 \n"
        "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                  [stack]\n"
    )
    monkeypatch.setattr(pages, "_MAPS", maps)
    monkeypatch.setattr(sys, "platform", "linux")
    assert pages.anonymous_memory() == [range(0x1000000, 0x1200000), range(0x7F0000000000, 0x7F0000400000)]


def test_elsewhere_there_is_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert pages.anonymous_memory() == []


def test_pages_are_all_that_memory_touches():
    assert pages.huge_pages([]) == []
    assert pages.huge_pages([range(HUGE - 1, HUGE + 1), range(5 * HUGE, 7 * HUGE)]) == [0, 1, 5, 6]
    assert pages.huge_pages([range(3 * HUGE, 3 * HUGE + 1), range(3 * HUGE + 9, 4 * HUGE)]) == [3]


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux alone")
def test_memory_keeps_what_is_in_it():
    array = np.random.default_rng(0).integers(0, 256, 4 * HUGE, np.uint8)
    copy = array.copy()
    start = array.ctypes.data
    for page in [*pages.huge_pages([range(start, start + len(array))]), 0]:  # page 0 is nobody's
        pages.make_huge(page)
    np.testing.assert_array_equal(array, copy)


def huge_bytes() -> int | None:
    """Of this process; None where the system tells none, or gives none."""
    settings, rollup = (
        Path("/sys/kernel/mm/transparent_hugepage/enabled"),
        Path("/proc/self/smaps_rollup"),
    )
    if not (settings.is_file() and rollup.is_file()) or "[never]" in settings.read_text():
        return None
    found = re.search(r"AnonHugePages:\s+(\d+)", rollup.read_text())
    return 1024 * int(found[1]) if found else None


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """The pages that were asked for. Each takes 10 ms, and so does a step."""
    found = []
    now = 0.0

    def ask(page: int) -> None:
        nonlocal now
        found.append(page)
        now += 0.01

    def step() -> float:
        nonlocal now
        now += 0.0001
        return now

    monkeypatch.setattr(pages, "make_huge", ask)
    monkeypatch.setattr(pages, "_SETTLING", 3)
    monkeypatch.setattr(pages.time, "perf_counter", step)
    return found


def test_a_decoder_asks_for_its_weights_once_after_some_steps(tiny, asked):
    decoder = Decoder(replace(tiny.decoder.session, settling=pages.Settling([range(6 * HUGE)])))
    counts = []
    for _ in range(9):
        decoder.step(Cache(decoder, 1, 16), np.zeros((1, 2), np.int64), np.zeros((1, 1), np.int64))
        counts.append(len(asked))
    assert asked == list(range(6))
    assert counts == [0, 0, 0, 1, 2, 3, 4, 5, 6]


def test_a_large_model_stays_where_it_is(asked):
    settling = pages.Settling([range(pages._MOST * HUGE + 1)])
    for _ in range(9):
        settling.step()
    assert asked == []


@pytest.mark.parametrize(("pause", "expected"), [(0.001, 1), (0.03, 2), (10.0, 2)])
def test_what_is_asked_for_takes_half_as_long_as_a_step(pause, expected, asked):
    """Of 30 ms, 15: the page that passes them is the second. Of a long pause no more than 20 ms."""
    settling = pages.Settling([range(60 * HUGE)])
    for _ in range(3):
        settling.step()
    last = pages.time.perf_counter()
    settling._last = last - pause
    settling.step()
    assert len(asked) == expected


def test_the_system_gives_them():
    if huge_bytes() is None:
        pytest.skip("this system has no huge pages, or does not tell")
    with mmap.mmap(-1, 3 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        array = np.frombuffer(memory, np.uint8)
        array[:] = 1  # there now, on small pages, for nobody has asked
        before = huge_bytes()
        start = array.ctypes.data
        for page in pages.huge_pages([range(start, start + len(array))]):
            pages.make_huge(page)
        after = huge_bytes()
        del array
    if after == before:
        pytest.skip("this system gives huge pages in its own time")
    assert after - before >= HUGE
