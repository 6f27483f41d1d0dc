"""What the processor offers: how many of its CPUs this process may use, and what they multiply fast."""

from __future__ import annotations

import functools
import os
import platform
import sys
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def allowed_cpus() -> int:
    """How many CPUs this process may use (its affinity), which may be fewer than the machine has."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def multiplies_bytes() -> bool:
    """Whether there are instructions that sum products of 8-bit integers. True where the system does not say.

    On x86 those are VNNI's. With AVX2 alone such a product takes longer than one of float32.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    return flags is None or bool({"avx_vnni", "avx512_vnni"} & set(flags))
