"""Drafts alone: what they guess and how sure of it; and how wide a step pays."""

from __future__ import annotations

import numpy as np
import pytest

from gptblock.runtime import draft
from gptblock.runtime.draft import Draft, worthwhile


def guesses(text: str, most: int = 4) -> str:
    tokens, likely = Draft(text.encode()).propose(most)
    assert len(tokens) == len(likely)
    return bytes(tokens).decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("abcdef", ""),  # nothing has followed f
        (20 * "abcde", "abcd"),
        (20 * "abcde" + "abc", "deab"),
        (10 * "xyz1" + 10 * "wyz2" + "1xyz", "1xyz"),  # the longer suffix knows better
        (30 * "ab" + "ac" + "ba", "b"),  # one vote does not outweigh many
        (30 * "ab" + 30 * "ac" + "a", "caca"),  # but many of late do
    ],
)
def test_guesses_what_followed_the_same_tokens_before(text, expected):
    assert guesses(text, len(expected) or 4) == expected


@pytest.mark.parametrize("most", range(4))
def test_guesses_no_more_than_asked_for(most):
    assert guesses(30 * "abcde", most) == "abcd"[:most]


def test_likelihoods_are_those_of_the_row():
    _, likely = Draft(100 * [1, 2, 3]).propose(8)
    assert len(likely) == 8
    assert sorted(likely, reverse=True) == likely
    assert 0.8 < likely[-1] < likely[0] < 1
    noise = np.random.default_rng(7).integers(0, 65, 3000).tolist()
    assert Draft(noise).propose(8) == ([], [])  # not worth a try
    half = [token for pair in zip(noise, 1500 * [64, 63], strict=True) for token in pair]
    assert all(chance < 0.2 for chance in Draft(half[:-1]).propose(8)[1][1:])


def test_counts_the_hits_of_late():
    row = Draft(100 * [1, 2, 3])
    assert row.hits > 0.95
    for token in range(10, 50):
        row.learn(token)
    assert row.hits < 0.1


def test_a_large_vocabulary_is_told_apart():
    tokens = [50_256, 0, 50_255, 50_256, 1, 50_255]
    assert Draft(20 * tokens + tokens[:2]).propose(4)[0] == [50_255, 50_256, 1, 50_255]


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(draft, "MAX_SUFFIXES", 300)
    row = Draft([])
    for token in np.random.default_rng(7).integers(0, 65, 1000).tolist():
        row.learn(token)
        assert len(row._table) <= 300
    for token in 200 * b"abc":
        row.learn(token)
    assert bytes(row.propose(3)[0]) == b"abc"


@pytest.mark.parametrize(
    ("likely", "expected"),
    [
        ([], 0),
        ([[]], 0),
        ([[0.9]], 1),
        ([[0.9, 0.8, 0.7]], 3),
        ([[0.9, 0.8, 0.01]], 2),
        ([[0.07]], 0),  # 1.07 tokens in the time of 1.06: not worth the risk
        ([[0.09]], 1),
        ([[0.9], *7 * [[]]], 0),  # seven rows would read padding
        (8 * [[0.9]], 1),
    ],
)
def test_reads_as_wide_as_promises_to_pay(likely, expected):
    assert worthwhile(likely) == expected
