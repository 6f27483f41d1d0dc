"""What is read of the processor, on machines of other kinds too."""

from __future__ import annotations

import os
import platform
import sys

import pytest

from gptblock.runtime import processor


def test_allowed_cpus_follow_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 3, raising=False)
    assert processor.allowed_cpus() == 3


def test_a_system_that_tells_no_affinity(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 12))
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert processor.allowed_cpus() == os.cpu_count()


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "multiplies"),
    [
        ("x86_64", "processor\t: 0\nflags\t\t: fpu avx2 fma\nbugs\t: none\n", False),
        ("x86_64", "flags\t\t: fpu avx2 avx512f avx512_vnni\n", True),
        ("x86_64", "flags\t\t: fpu avx2 avx_vnni\n", True),
        ("x86_64", "nothing that is known\n", True),
        ("AMD64", None, True),  # Windows
        ("aarch64", "Features\t: fp asimd\n", True),
    ],
)
def test_products_of_bytes(machine, cpuinfo, multiplies, monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    processor.multiplies_bytes.cache_clear()
    assert processor.multiplies_bytes() is multiplies
    processor.multiplies_bytes.cache_clear()
