"""Fresh processes: that they are ours, that their memory is theirs, and what a failure says."""

from __future__ import annotations

import numpy as np
import pytest

from gptblock.errors import GptblockError
from gptblock.runtime import fresh


def test_footprint_of_a_bundle(tiny_bundle, monkeypatch):
    monkeypatch.setattr(fresh, "_STARTS", 1)
    graph = tiny_bundle / "model.onnx"
    result = fresh.footprint(tiny_bundle, graph, "fp32", "cpu", 1, 0)
    assert (result.precision, result.file, result.threads) == ("fp32", "model.onnx", 1)
    assert result.file_size == graph.stat().st_size
    assert result.start_up.count == 1
    assert 20 < result.start_up.p50 < 120_000
    if result.memory is not None:
        assert 0 < result.memory < 500_000_000
        assert result.memory_by_file == result.memory / result.file_size


def test_memory_that_the_system_does_not_tell_is_none(tiny_bundle, monkeypatch):
    monkeypatch.setattr(fresh, "_STARTS", 0)
    monkeypatch.setattr(fresh.Spread, "of", lambda starts: starts)
    monkeypatch.setattr(fresh, "_MEASURE", "print(None)")
    result = fresh.footprint(tiny_bundle, tiny_bundle / "model.onnx", "fp32", "cpu", 1, 0)
    assert (result.memory, result.memory_by_file) == (None, None)


def test_resident_bytes_grow_with_what_is_held():
    before = fresh.resident_bytes()
    if before is None:
        pytest.skip("this system does not tell")
    held = np.ones(30_000_000, np.uint8)
    grown = fresh.resident_bytes()
    assert grown - before > 20_000_000
    assert held[0] == 1


def test_growth_is_what_came_between(tiny_bundle, monkeypatch):
    readings = iter([1000, 4500])
    monkeypatch.setattr(fresh, "resident_bytes", lambda: next(readings))
    assert fresh.growth(tiny_bundle, "fp32", "cpu", 1, 0) == 3500


def test_a_process_that_fails_says_why(tmp_path):
    with pytest.raises(GptblockError, match=r"ended with exit code 3, saying: error: there is no .*nowhere"):
        fresh.footprint(tmp_path / "nowhere", tmp_path / "nowhere", "fp32", "cpu", 1, 0)
