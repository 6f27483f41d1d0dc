"""The sampler against its definitions: what is kept, what is drawn, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from gptblock.config import SamplingConfig
from gptblock.errors import GptblockError
from gptblock.sampling import probabilities, sample

NOTHING = np.empty(0, dtype=np.int64)

logits = npst.arrays(np.float32, st.integers(1, 12), elements=st.floats(-30, 30, width=32))


def kept(values: object, previous: NDArray[np.int64] = NOTHING, **settings: float) -> list[int]:
    """The ids that can be drawn."""
    shares = probabilities(np.asarray(values, dtype=np.float32), SamplingConfig.from_dict(settings), previous)
    assert math.isclose(shares.sum(), 1.0, rel_tol=1e-12)
    return np.flatnonzero(shares).tolist()


def draw(values: object, seed: int = 0, previous: NDArray[np.int64] = NOTHING, **settings: float) -> int:
    config = SamplingConfig.from_dict(settings)
    return sample(np.asarray(values, dtype=np.float32), config, previous, np.random.default_rng(seed))


@given(logits, st.floats(0.1, 10))
def test_plain_sampling_is_the_softmax(values: NDArray[np.float32], temperature: float) -> None:
    scaled = values.astype(np.longdouble) / temperature
    expected = np.exp(scaled - scaled.max())
    shares = probabilities(values, SamplingConfig(temperature=temperature), NOTHING)
    assert shares.dtype == np.float64
    np.testing.assert_allclose(
        shares, (expected / expected.sum()).astype(np.float64), rtol=1e-11, atol=1e-300
    )


@given(
    logits,
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0.05, 5),
            "top_k": st.integers(0, 14),
            "top_p": st.floats(0, 1),
            "min_p": st.floats(0, 1),
            "repetition_penalty": st.floats(0.5, 2),
        },
    ),
    st.integers(0, 2**32),
)
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(
    values: NDArray[np.float32], settings: dict[str, float], seed: int
) -> None:
    config, previous = SamplingConfig.from_dict(settings), np.array([0, len(values) - 1, 0])
    shares = probabilities(values, config, previous)
    rng, same = np.random.default_rng(seed), np.random.default_rng(seed)
    token, uniform = sample(values, config, previous, rng), same.random()
    assert type(token) is int
    assert shares[token] > 0
    assert shares[:token].sum() <= uniform + 1e-12
    assert shares[: token + 1].sum() > uniform - 1e-12
    assert rng.bit_generator.state == same.bit_generator.state  # one number was drawn, no more


def test_frequencies_are_the_probabilities() -> None:
    rng, shares = np.random.default_rng(1), np.array([0.5, 0.0, 0.3, 0.2])
    with np.errstate(divide="ignore"):
        values = np.log(shares)
    counts = np.bincount([sample(values, SamplingConfig(), NOTHING, rng) for _ in range(4000)], minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts / 4000, shares, atol=0.032)  # four standard deviations


@pytest.mark.parametrize("uniform", [0.0, math.nextafter(1.0, 0.0)])
def test_the_ends_of_the_unit_interval_draw_what_is_possible(uniform: float) -> None:
    class Fixed:
        def random(self) -> float:
            return uniform

    values = np.array([-np.inf, 0.0, -3.0, -np.inf], dtype=np.float32)
    token = sample(values, SamplingConfig(), NOTHING, Fixed())  # type: ignore[arg-type]
    assert token == (1 if uniform == 0.0 else 2)


# Temperature


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-310, 1e-40])
def test_no_or_a_tiny_temperature_is_the_largest_logit(temperature: float) -> None:
    values = [1.0, 5.0, -90.0, 4.9, -np.inf]
    assert draw(values, temperature=temperature) == 1
    shares = probabilities(np.array(values), SamplingConfig(temperature=temperature), NOTHING)
    assert shares.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_greedy_takes_the_lowest_id_of_a_tie_and_draws_nothing() -> None:
    rng = np.random.default_rng(3)
    assert sample(np.array([1.0, 2.0, 2.0]), SamplingConfig(temperature=0), NOTHING, rng) == 1
    assert rng.bit_generator.state == np.random.default_rng(3).bit_generator.state


def test_a_huge_temperature_is_uniform() -> None:
    shares = probabilities(np.array([-30.0, 0.0, 30.0]), SamplingConfig(temperature=1e300), NOTHING)
    np.testing.assert_allclose(shares, 1 / 3)


# Top-k


@pytest.mark.parametrize(("k", "count"), [(0, 65), (1, 1), (2, 2), (64, 64), (65, 65), (66, 65), (10**9, 65)])
def test_top_k_keeps_exactly_the_k_best(k: int, count: int) -> None:
    values = np.random.default_rng(0).normal(size=65)
    assert kept(values, top_k=k) == sorted(np.argsort(-values)[:count].tolist())


@pytest.mark.parametrize(
    ("values", "k", "expected"),
    [
        ([2, 2, 2, 1], 1, [0]),
        ([1, 2, 2, 2], 2, [1, 2]),
        ([2, 1, 2, 1, 1], 3, [0, 1, 2]),
        ([0, 0, 0, 0], 3, [0, 1, 2]),
        ([-np.inf, 0, -np.inf], 2, [1]),  # what is impossible stays so
    ],
)
def test_lowest_ids_win_ties_for_top_k(values: list[float], k: int, expected: list[int]) -> None:
    assert kept(values, top_k=k) == expected
    assert {draw(values, seed, top_k=k) for seed in range(100)} == set(expected)


# Top-p and min-p


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(
    ("p", "count"), [(0, 1), (1e-9, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (0.999, 3), (1, 3)]
)
def test_top_p_keeps_the_fewest_that_reach_p(p: float, count: int, order: tuple[int, ...]) -> None:
    values = np.log([0.5, 0.3, 0.2])[list(order)]
    best = sorted(range(3), key=lambda token: order[token])
    assert kept(values, top_p=p) == sorted(best[:count])


def test_top_p_breaks_ties_by_id() -> None:
    assert kept([0, 0, 0, 0], top_p=0) == [0]
    # more tokens than the 16 up to which every sort of numpy's is stable
    values, share = np.tile([0.0, 1.0], 100), math.e / (math.e + 1)
    assert kept(values, top_p=share / 4) == list(range(1, 50, 2))
    assert kept(values, top_p=share + (1 - share) / 4) == sorted([*range(1, 200, 2), *range(0, 50, 2)])


@pytest.mark.parametrize("offset", [-20.0, -3.0, 0.0, 1.0, 2.0, 7.0, 20.0])
def test_top_p_is_not_moved_by_the_rounding_of_logits(offset: float) -> None:
    values = (np.log([0.5, 0.3, 0.2]) + offset).astype(np.float32)
    assert kept(values, top_p=0.5) == [0]
    assert kept(values, top_p=0.8) == [0, 1]


@given(logits, st.floats(0, 0.999))
def test_top_p_is_the_smallest_nucleus(values: NDArray[np.float32], p: float) -> None:
    shares = probabilities(values, SamplingConfig(), NOTHING)
    nucleus = kept(values, top_p=p)
    assert shares[nucleus].sum() >= p - 2e-6
    assert len(nucleus) == 1 or shares[nucleus].sum() - shares[nucleus].min() < p
    outside = np.delete(shares, nucleus)
    assert outside.size == 0 or shares[nucleus].min() >= outside.max()


@pytest.mark.parametrize(
    ("min_p", "expected"), [(0, [0, 1, 2]), (0.39, [0, 1, 2]), (0.41, [0, 1]), (0.61, [0]), (1, [0])]
)
def test_min_p_is_a_share_of_the_likeliest(min_p: float, expected: list[int]) -> None:
    assert kept(np.log([0.5, 0.3, 0.2]), min_p=min_p) == expected


# The order


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # top-k before top-p: .5 of the .5 + .3 left is .625 already
        ({"top_k": 2, "top_p": 0.6}, [0]),
        ({"top_k": 0, "top_p": 0.6}, [0, 1]),
        # temperature before top-p: at 1/2 the shares are 25, 9, 4 of 38
        ({"temperature": 0.5, "top_p": 0.65}, [0]),
        ({"temperature": 1.0, "top_p": 0.65}, [0, 1]),
        # temperature before min-p
        ({"temperature": 0.5, "min_p": 0.39}, [0]),
        ({"temperature": 2.0, "min_p": 0.6}, [0, 1, 2]),
        # penalty before top-k
        ({"repetition_penalty": 3.0, "top_k": 1}, [1]),
    ],
)
def test_the_order_is_penalty_temperature_top_k_top_p_min_p(
    settings: dict[str, float], expected: list[int]
) -> None:
    values = np.log([0.5, 0.3, 0.2]) + 2.0  # positive, so that the penalty divides
    assert kept(values, previous=np.array([0]), **settings) == expected


# Repetition penalty


def test_the_penalty_makes_tokens_less_likely_whatever_their_sign_and_once() -> None:
    values = np.array([2.0, -2.0, 0.0, 1.0])
    shares = probabilities(values, SamplingConfig(repetition_penalty=2.0), np.array([1, 0, 0, 2, 0]))
    expected = np.exp([1.0, -4.0, 0.0, 1.0])
    np.testing.assert_allclose(shares, expected / expected.sum(), rtol=1e-12)
    assert values.tolist() == [2.0, -2.0, 0.0, 1.0]  # the caller's own


def test_the_penalty_comes_before_greedy_too() -> None:
    assert draw([2.0, 1.5], previous=np.array([0]), temperature=0) == 0
    assert draw([2.0, 1.5], previous=np.array([0]), temperature=0, repetition_penalty=1.5) == 1


# What is refused


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, np.nan, 1.0], r"is nan \(1 are NaN\)"),
        ([np.nan, np.nan], r"is nan \(2 are NaN\)"),
        ([0.0, np.inf], "is inf"),
        ([-np.inf, -np.inf], "is -inf"),
    ],
)
def test_logits_that_are_no_numbers_are_never_sampled(
    values: list[float], expected: str, settings: dict[str, float]
) -> None:
    config = SamplingConfig.from_dict(settings)
    with pytest.raises(GptblockError, match=expected):
        probabilities(np.array(values), config, NOTHING)
    with pytest.raises(GptblockError, match=expected):
        sample(np.array(values), config, NOTHING, np.random.default_rng(0))


def test_an_absurd_penalty_is_refused_and_not_warned_about() -> None:
    with pytest.raises(GptblockError, match="is inf"):
        draw([1.0, 2.0], previous=np.array([0]), repetition_penalty=5e-324)
