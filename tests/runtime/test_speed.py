"""The stopwatch: what it times, the percentiles by numpy, and the floor by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gptblock.runtime import speed
from gptblock.runtime.session import Provider
from gptblock.runtime.speed import Lengths, Spread, Stopwatch, weight_bytes

RULER = np.ones(1_000_000, np.int32)
LENGTHS = Lengths(prompt=5, new=4, prefill=9)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(speed, "_SETTLE", 0)
    bandwidths = itertools.cycle([2e9, 1e9, 9e9])
    monkeypatch.setattr(speed, "read_bandwidth", lambda ruler, threads: next(bandwidths))  # noqa: ARG005


def measured(decoder, batch: int, rounds: int, weights: int = 1000) -> Stopwatch:
    """A stopwatch after some rounds by a clock whose n-th tick, from 0 on, is n milliseconds long."""
    ticks = itertools.accumulate(itertools.count(0))
    watch = Stopwatch(decoder, weights, 1, batch, LENGTHS, clock=lambda: next(ticks) / 1000)
    for i in range(rounds):
        watch.measure(np.random.default_rng(i), RULER)
    return watch


def test_durations_are_those_of_the_clock(decoder):
    watch = measured(decoder, batch=1, rounds=1)
    # Ticks: not counted 1, 2 and 4 (and the starts'); prefill 6; then, after its start, 8, 9, 10 and 11.
    assert watch.prefills == pytest.approx([0.006])
    assert watch.first_tokens == pytest.approx([0.008])
    assert watch.steps == pytest.approx([0.009, 0.010, 0.011])


def test_a_step_of_a_batch_ends_with_its_last_row(decoder):
    watch = measured(decoder, batch=2, rounds=1)
    # Ticks after each start: not counted 1 to 4, 6, 7; prefill 9, 10; 12, 13 | 14, 15 | 16, 17 | 18, 19.
    assert watch.prefills == pytest.approx([0.009 + 0.010])
    assert watch.first_tokens == pytest.approx([0.012])
    assert watch.steps == pytest.approx([0.014 + 0.015, 0.016 + 0.017, 0.018 + 0.019])


@pytest.mark.parametrize(("batch", "rounds"), [(1, 1), (3, 4)])
def test_a_speed_counts_every_round_and_step(decoder, batch, rounds):
    watch = measured(decoder, batch, rounds)
    result = watch.speed()
    counts = (result.decode.count, result.prefill.count, result.first_token.count)
    assert counts == (rounds * (LENGTHS.new - 1), rounds, rounds)
    for spread, seconds in (
        (result.decode, watch.steps),
        (result.prefill, watch.prefills),
        (result.first_token, watch.first_tokens),
    ):
        assert spread.p50 == pytest.approx(1000 * np.median(seconds))
        assert spread.p95 == pytest.approx(1000 * np.quantile(seconds, 0.95))
    assert result.decode_tokens_per_second == pytest.approx(batch / np.median(watch.steps))
    assert result.prefill_tokens_per_second == pytest.approx(batch * 9 / np.median(watch.prefills))


def test_percentiles_are_interpolated():
    assert Spread.of([0.001, 0.002, 0.003, 0.005]) == Spread(pytest.approx(2.5), pytest.approx(4.7), 4)


@pytest.mark.parametrize("batch", [1, 4])
def test_the_floor_is_weights_and_cache_at_the_median_bandwidth(decoder, batch):
    result = measured(decoder, batch, rounds=3, weights=2_000_000).speed()
    # 2 layers of keys and values, 32 wide, 4 bytes each; 5 + 4 / 2 tokens in the middle of a call
    assert result.step_bytes == 2_000_000 + batch * (2 * 2 * 32 * 4) * 7
    assert result.bandwidth == 2e9
    assert result.floor == pytest.approx(1000 * result.step_bytes / 2e9)
    assert result.reached == pytest.approx(result.floor / result.decode.p50)


def test_a_device_has_no_floor_by_the_hosts_memory(decoder, monkeypatch):
    monkeypatch.setattr(decoder, "session", replace(decoder.session, provider=Provider("cuda", 0, "")))
    monkeypatch.setattr(Stopwatch, "_times", lambda self, prompts, new: np.ones((new, len(prompts))))  # noqa: ARG005
    monkeypatch.setattr(Spread, "of", lambda seconds: Spread(1.0, 1.0, len(seconds)))
    result = measured(decoder, batch=1, rounds=2).speed()
    assert (result.bandwidth, result.floor, result.reached) == (None, None, None)
    assert result.decode.count == 2 * 3


def test_the_bandwidth_is_of_an_array_as_large_as_a_step(decoder, monkeypatch):
    seen = []
    monkeypatch.setattr(speed, "read_bandwidth", lambda ruler, threads: seen.append((ruler.nbytes, threads)))
    watch = Stopwatch(decoder, 20_000, 3, 1, LENGTHS)
    watch.measure(np.random.default_rng(0), RULER)
    assert seen == [(watch.step_bytes // 4 * 4, 3)]


def test_weights_are_the_file_without_its_metadata(decoder, tiny_model, tiny_bundle):
    weights = sum(parameter.nbytes for parameter in tiny_model.parameters())
    got = weight_bytes(tiny_bundle / "model.onnx", decoder)
    metadata = sum(map(len, itertools.chain(*decoder.metadata.to_metadata().items())))
    assert got == (tiny_bundle / "model.onnx").stat().st_size - metadata
    assert weights < got < weights + 40_000  # the rest are the graph's nodes
