"""The read bandwidth: its arithmetic, its threads, and that it is a number a machine can have."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gptblock.runtime import bandwidth


@pytest.fixture
def two_cpus(monkeypatch):
    monkeypatch.setattr(bandwidth, "allowed_cpus", lambda: 2)


@pytest.mark.parametrize(("threads", "expected"), [(1, 8e6), (2, 16e6), (64, 16e6)])
@pytest.mark.usefixtures("two_cpus")
def test_bytes_by_seconds_of_each_thread_up_to_the_cpus(threads, expected, monkeypatch):
    clocks = threading.local()

    def clock() -> float:  # a sample takes half a second, in every thread; one is interrupted for long
        clocks.calls = getattr(clocks, "calls", 0) + 1
        return clocks.calls * 0.5 + (100 if clocks.calls > 4 else 0)

    monkeypatch.setattr(bandwidth.time, "perf_counter", clock)
    array = np.ones(1_000_000, np.int32)  # 4 MB: one pass a sample, or two of half of it
    assert bandwidth.read_bandwidth(array, threads) == pytest.approx(expected)


@pytest.mark.parametrize("size", [1, 1000, 2_000_000])
def test_a_machine_can_have_it(size):
    assert 1e7 < bandwidth.read_bandwidth(np.ones(size, np.int32), 2) < 1e13
