"""The checks of the proof: each holds for what is right, and fails for its fault."""

from __future__ import annotations

import dataclasses
import itertools
from typing import get_args

import numpy as np
import pytest

from gptblock.bundle.manifest import Precision
from gptblock.bundle.store import read_tensors
from gptblock.errors import CorruptError
from gptblock.runtime.golden import Golden
from gptblock.runtime.proof import (
    CAUSALITY_TOLERANCES,
    TOLERANCES,
    check_causality,
    check_greedy,
    check_logits,
    check_ragged_rows,
    lasts,
    prove,
    tolerance,
)

V, T = 5, 8
IDS = np.random.default_rng(0).integers(0, V, size=(3, T))
ALL = np.arange(T)
TABLE = np.random.default_rng(0).normal(size=(V, V)).astype(np.float32)

LOGITS, STAY, MOVE = (
    "logits at every length",
    "causality: earlier logits stay",
    "causality: later logits move",
)
CHUNKS, RAGGED, GREEDY = "cache: chunks of any split", "cache: rows of unlike lengths", "greedy text"


def causal(ids: np.ndarray) -> np.ndarray:
    """A model by hand: what was read so far, summed. (B, T) -> (B, T, V)"""
    return TABLE[ids].cumsum(axis=1)


def at(logits_of):
    """The same, at some positions only, as the proof asks for them."""
    return lambda ids, positions: logits_of(ids)[:, positions]


def nan_at(length: int):
    """The same model, which gives one NaN for inputs of `length` tokens."""

    def logits_of(ids: np.ndarray) -> np.ndarray:
        logits = causal(ids)
        if ids.shape[1] == length:
            logits[0, 0, 0] = np.nan
        return logits

    return at(logits_of)


@pytest.fixture
def golden(tiny, tiny_bundle) -> Golden:
    return Golden.from_tensors(read_tensors(tiny_bundle / "golden.safetensors"), tiny.config)


def failures(checks) -> set[str]:
    return {check.name for check in checks if not check.ok}


def test_logits_are_compared_at_every_length_and_in_two_batch_sizes():
    seen = []

    def expected_of(ids):
        seen.append(ids.shape)
        return causal(ids)

    check = check_logits(at(causal), at(expected_of), IDS, ALL, allowed=0.0)
    assert seen == [(batch, time) for time in range(1, T + 1) for batch in (1, 3)]
    assert (check.cases, check.worst, check.ok) == (2 * T, 0.0, True)


@pytest.mark.parametrize("length", [1, 5, T])
def test_one_wrong_length_fails(length):
    def wrong(ids):
        return causal(ids) + (0.25 if ids.shape[1] == length else 0.0)

    check = check_logits(at(causal), at(wrong), IDS, ALL, allowed=0.1)
    assert check.worst == pytest.approx(0.25, abs=1e-6)
    assert not check.ok


@pytest.mark.parametrize("length", [1, 5, T])
def test_a_nan_on_either_side_fails_wherever_it_is(length):
    assert not check_logits(nan_at(length), at(causal), IDS, ALL, allowed=1.0).ok
    assert not check_logits(at(causal), nan_at(length), IDS, ALL, allowed=1.0).ok


def test_logits_of_another_shape_are_no_logits():
    with pytest.raises(CorruptError, match=r"logits of shape \(1, 1, 4\) where \(1, 1, 5\) was expected"):
        check_logits(at(lambda ids: causal(ids)[..., :4]), at(causal), IDS, ALL, allowed=1.0)


@pytest.mark.parametrize(
    ("logits_of", "earlier_moved", "stuck"),
    [
        (causal, False, 0),
        (lambda ids: causal(ids) + TABLE[ids].sum(axis=1, keepdims=True), True, 0),  # no mask
        (lambda ids: causal(ids) + 1e-3 * np.roll(TABLE[ids], -1, axis=1), True, 0),  # sees one token ahead
        (lambda ids: causal(ids) + TABLE[np.roll(ids, 1, axis=0)], True, 0),  # sees another row
        (lambda ids: TABLE[ids], False, T - 1),  # remembers nothing
        (lambda ids: np.pad(causal(ids), ((0, 0), (1, 0), (0, 0)))[:, :-1], False, T),  # not its own token
        (lambda ids: np.zeros((*ids.shape, V), np.float32), False, T),
    ],
)
def test_causality_both_ways(logits_of, earlier_moved, stuck):
    stay, move = check_causality(at(logits_of), IDS, ALL, V, allowed=0.0)
    assert (stay.cases, move.cases) == (T, T)
    assert (stay.ok, stay.worst > 0) == (not earlier_moved, earlier_moved)
    assert (move.ok, move.worst) == (stuck == 0, stuck)


def test_causality_of_nan_fails():
    stay, _ = check_causality(nan_at(T), IDS, ALL, V, allowed=1.0)
    assert np.isnan(stay.worst)
    assert not stay.ok


def test_a_vocabulary_of_one_has_nothing_to_change():
    flat = at(lambda ids: np.zeros((*ids.shape, 1)))
    checks = check_causality(flat, np.zeros((3, 4), int), np.arange(4), 1, allowed=0.0)
    assert [(check.cases, check.ok) for check in checks] == [(0, True), (0, True)]


# The third golden token is drawn from this window: the last T of prompt and golden text.
PROMPT, TEXT = np.arange(7) % V, np.array([4, 3, 2, 1])


def prefers(scores: list[float]):
    """Logits with these scores at the last position, of the one window that is right to look at."""

    def logits_of(ids):
        assert ids.tolist() == [[1, 2, 3, 4, 0, 1, 4, 3]]
        logits = np.zeros((1, T, V), np.float32)
        logits[0, -1] = scores
        return logits

    return at(logits_of)


@pytest.mark.parametrize(
    ("third", "scores", "worst"),
    [
        (0, [1.5, 0.0, 1.0, 0.0, 0.0], 0.5),  # the graph prefers another token
        (0, [1.0, 0.0, 1.0, 0.0, 0.0], 0.0),  # a tie
        (0, [1.0, 0.0, 1.5, 0.0, 0.0], 0.5),  # the graph prefers the golden one, and the loop took another
        (0, [float("nan"), 0.0, 1.0, 0.0, 0.0], float("nan")),
    ],
)
def test_a_greedy_text_that_differs_is_worth_the_preference(third, scores, worst):
    golden = Golden(IDS, ALL, causal(IDS), PROMPT, TEXT, np.zeros(1, np.int64))
    check = check_greedy(prefers(scores), np.array([4, 3, third, 0]), golden, allowed=0.1)
    assert (check.name, check.cases) == (GREEDY, 4)
    assert check.worst == pytest.approx(worst, nan_ok=True)
    assert check.ok is (worst <= 0.1)


def test_a_greedy_text_that_ends_early_fails():
    golden = Golden(IDS, ALL, causal(IDS), PROMPT, TEXT, np.zeros(1, np.int64))
    check = check_greedy(at(causal), TEXT[:3], golden, allowed=1.0)
    assert np.isnan(check.worst)
    assert not check.ok


def test_a_greedy_text_that_agrees_needs_no_logits():
    golden = Golden(IDS, ALL, causal(IDS), PROMPT, TEXT, np.zeros(1, np.int64))
    assert check_greedy(lambda *_: pytest.fail("not needed"), TEXT, golden, allowed=0.0).worst == 0.0


@pytest.mark.parametrize(
    ("provider", "largest", "allowed"),
    [
        ("cpu", 0.1, 1e-5),
        ("cpu", 30.0, 3e-4),
        ("cuda", 0.1, 1e-4),
        ("cuda", -30.0, 3e-3),
        ("cpu", float("nan"), 1e-5),
        ("cpu", float("inf"), 1e-5),  # else everything would be allowed
    ],
)
def test_the_tolerance_grows_with_the_largest_logit(provider, largest, allowed):
    logits = np.array([0.01, largest, 0.02], np.float32)
    assert tolerance("fp32", provider, logits) == pytest.approx(allowed, rel=1e-6)


@pytest.mark.parametrize(("count", "tried"), [(1, 1), (3, 3), (64, 64), (65, 64), (1024, 64)])
def test_prefixes_of_many_lengths_are_tried(count, tried):
    ends = lasts(np.arange(count))
    assert (ends[0], ends[-1], len(set(ends))) == (0, count - 1, tried)


# A spread of positions, as large models are proved at, sees the same faults where it looks.
SPREAD = np.array([0, 3, 7])


def test_a_spread_of_positions_is_looked_at_and_no_other():
    wrong = at(lambda ids: causal(ids) + np.isin(np.arange(ids.shape[1]), [1, 2, 4, 5, 6])[:, None])
    right = check_logits(at(causal), wrong, IDS, SPREAD, allowed=0.0)
    assert (right.cases, right.worst) == (6, 0.0)
    assert not check_logits(at(causal), at(lambda ids: causal(ids) * 2), IDS, SPREAD, allowed=0.1).ok


def test_a_mask_one_too_near_does_not_slip_through_a_spread():
    near = at(lambda ids: causal(ids) + 1e-3 * np.roll(TABLE[ids], -1, axis=1))
    stay, move = check_causality(near, IDS, SPREAD, V, allowed=0.0)
    assert (stay.cases, stay.ok, move.ok) == (3, False, True)


def test_the_chunks_of_a_spread_hold_and_fail(decoder, golden):
    positions = np.array([0, 1, 7, 15])
    spread = dataclasses.replace(golden, positions=positions, logits=golden.logits[:, positions])
    assert failures(prove(decoder, spread)) == set()
    assert failures(prove(decoder, changed(spread, "logits", (2, 2, 3), 1e-3))) == {LOGITS, CHUNKS, RAGGED}


def test_the_proof_of_the_shared_bundle_holds(decoder, golden):
    checks = prove(decoder, golden)
    assert [check.name for check in checks] == [LOGITS, STAY, MOVE, CHUNKS, RAGGED, GREEDY]
    assert [check.cases for check in checks][:4] == [32, 16, 16, 10]
    assert failures(checks) == set()
    assert [check.worst for check in checks if check.name in (STAY, MOVE, GREEDY)] == [0.0, 0.0, 0.0]
    assert all(0 < check.worst <= 1e-5 for check in checks if check.name in (LOGITS, CHUNKS, RAGGED))


def test_without_golden_vectors_a_graph_is_held_against_itself(decoder):
    checks = prove(decoder, golden=None)
    assert [check.name for check in checks] == [STAY, MOVE, CHUNKS, RAGGED]
    assert failures(checks) == set()


def changed(golden: Golden, name: str, index: tuple[int, ...], by: float) -> Golden:
    tensor = getattr(golden, name).copy()
    tensor[index] += by
    return dataclasses.replace(golden, **{name: tensor})


@pytest.mark.parametrize(
    ("name", "index", "by", "failing"),
    [
        ("logits", (0, 0, 0), 1e-3, {LOGITS, CHUNKS, RAGGED}),
        ("logits", (2, 15, 64), -1e-3, {LOGITS, CHUNKS}),
        ("logits", (1, 3, 7), float("nan"), {LOGITS, CHUNKS, RAGGED}),
        ("logits", (0, 0, 0), float("inf"), {LOGITS, CHUNKS, RAGGED}),
        ("greedy_ids", (23,), -1, {GREEDY}),
        ("greedy_prompt", (7,), -1, {GREEDY}),
    ],
)
def test_changed_golden_vectors_fail(name, index, by, failing, decoder, golden):
    assert failures(prove(decoder, changed(golden, name, index, by))) == failing


@pytest.mark.parametrize(
    ("broken", "failing"),
    [
        (lambda past, time, _: past > 0 and time == 1, {CHUNKS, RAGGED}),
        (lambda past, time, _: past > 0 and time > 1, {CHUNKS, RAGGED}),
        (lambda _, time, valid: valid is not None and (valid < time).any(), {RAGGED}),
    ],
)
def test_a_cache_that_is_wrong_fails(broken, failing, decoder, golden, monkeypatch):
    step = decoder.step

    def wrong(cache, ids, positions, valid=None):
        fault = 0.01 if broken(cache.length.max(), ids.shape[1], valid) else 0.0
        return step(cache, ids, positions, valid) + np.float32(fault)

    monkeypatch.setattr(decoder, "step", wrong)
    assert failures(prove(decoder, golden)) == failing
    assert failures(prove(decoder, golden=None)) == failing


def test_golden_vectors_round_trip(tiny, golden):
    again = Golden.from_tensors(golden.to_tensors(), tiny.config)
    for field in dataclasses.fields(Golden):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(golden, field.name))


def without(tensors, name):
    return {other: tensor for other, tensor in tensors.items() if other != name}


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: without(tensors, "greedy_ids"),
        lambda tensors: tensors | {"extra": np.zeros(1)},
        lambda tensors: tensors | {"input_ids": tensors["input_ids"][:, :-1]},
        lambda tensors: tensors | {"input_ids": tensors["input_ids"].astype(np.float32)},
        lambda tensors: tensors | {"input_ids": tensors["input_ids"] + 65},
        lambda tensors: tensors | {"logits": tensors["logits"][..., :-1]},
        lambda tensors: (
            tensors | {"positions": tensors["positions"][:-1], "logits": tensors["logits"][:, :-1]}
        ),
        lambda tensors: tensors | {"positions": tensors["positions"][::-1].copy()},
        lambda tensors: tensors | {"positions": tensors["positions"] - 1},
        lambda tensors: tensors | {"logits": tensors["logits"][:-1]},
        lambda tensors: tensors | {"greedy_prompt": tensors["greedy_prompt"][:0]},
        lambda tensors: tensors | {"greedy_prompt": tensors["greedy_prompt"][None]},
        lambda tensors: tensors | {"greedy_ids": tensors["greedy_ids"] - 65},
    ],
)
def test_golden_vectors_of_another_model_are_refused(change, tiny, golden):
    with pytest.raises(CorruptError, match="golden vectors"):
        Golden.from_tensors(change(golden.to_tensors()), tiny.config)


def test_a_tolerance_is_stated_for_each_precision_on_each_provider():
    assert set(TOLERANCES) == set(itertools.product(get_args(Precision), CAUSALITY_TOLERANCES))
    for provider in CAUSALITY_TOLERANCES:
        stated = [TOLERANCES[precision, provider] for precision in get_args(Precision)]
        assert stated == sorted(stated)


def test_the_one_row_of_a_large_model_is_cut_in_two_ways(decoder):
    model = decoder.metadata.model
    ids = np.random.default_rng(0).integers(0, model.vocab_size, size=(1, model.block_size))
    positions = np.arange(model.block_size)
    expected = decoder.logits(ids)
    assert check_ragged_rows(decoder, ids, positions, expected, 1e-5).ok
    assert not check_ragged_rows(decoder, ids, positions, expected + 0.1, 1e-5).ok
