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
    pages.make_huge([*pages.huge_pages([range(start, start + len(array))]), 0])  # page 0 is nobody's
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


def test_a_decoder_asks_for_its_weights_once_and_bit_by_bit(tiny, monkeypatch):
    asked = []
    monkeypatch.setattr("gptblock.runtime.pages.make_huge", lambda pages: asked.append(list(pages)))
    monkeypatch.setattr("gptblock.runtime.pages._SETTLING", 3)
    decoder = Decoder(replace(tiny.decoder.session, settling=pages.Settling([range(6 * HUGE)])))
    for _ in range(6):
        decoder.step(Cache(decoder, 1, 16), np.zeros((1, 2), np.int64), np.zeros((1, 1), np.int64))
    assert asked == [[0, 1, 2, 3], [4, 5], []]


def test_the_system_gives_them():
    if huge_bytes() is None:
        pytest.skip("this system has no huge pages, or does not tell")
    with mmap.mmap(-1, 3 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        array = np.frombuffer(memory, np.uint8)
        array[:] = 1  # there now, on small pages, for nobody has asked
        before = huge_bytes()
        start = array.ctypes.data
        pages.make_huge(pages.huge_pages([range(start, start + len(array))]))
        after = huge_bytes()
        del array
    if after == before:
        pytest.skip("this system gives huge pages in its own time")
    assert after - before >= HUGE
