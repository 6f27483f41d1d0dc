"""How fast this machine reads memory, as far as numpy gets: what a token takes at the least."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from numpy.typing import NDArray

from gptblock.runtime.processor import allowed_cpus

_SAMPLE = 4_000_000  # bytes that a thread reads between two looks at the clock: some tenths of a millisecond
_SAMPLES = 40  # of a thread; fewer, down to 5, of a part so large that one pass takes long


def read_bandwidth(array: NDArray[np.int32], threads: int) -> float:
    """Bytes per second at which threads read an array (N,) over and over, all at once, each its own part.

    As many threads as asked for, at most as many as this process may use CPUs. A read is numpy's largest
    element of int32: vectorised, no sum that waits for the one before, and without Python's lock. What
    fits into a cache is read from there, as the weights of a small model are. Each thread counts with its
    median sample: samples are as short as steps of a model, and are interrupted as seldom. Other code may
    read faster: this is what has been seen here, and no limit of the hardware.
    """
    parts = [part for part in np.array_split(array, min(threads, allowed_cpus())) if len(part)]
    barrier = Barrier(len(parts))

    def read(part: NDArray[np.int32]) -> float:
        passes = np.broadcast_to(part, (math.ceil(_SAMPLE / part.nbytes), len(part)))
        samples = max(5, min(_SAMPLES, _SAMPLES * _SAMPLE // passes.size // part.itemsize))
        part.max()  # what a cache can hold is there now
        barrier.wait()
        seconds = []
        for _ in range(samples):
            started = time.perf_counter()
            passes.max(axis=1)  # one call, however often it reads
            seconds.append(time.perf_counter() - started)
        return float(passes.size * part.itemsize / np.median(seconds))

    with ThreadPoolExecutor(len(parts)) as pool:
        return sum(pool.map(read, parts))
