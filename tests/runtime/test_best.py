"""The largest logits alone: the same tokens as from all of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime import OrtValue

from gptblock.config import SamplingConfig
from gptblock.runtime import decoder
from gptblock.runtime.best import MODEL, best
from gptblock.runtime.model import load
from gptblock.sampling import largest, sample

PROMPTS = ["A", "ROMEO:", "My lord, what news"]


@pytest.fixture(scope="module")
def session():
    return onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])


def test_the_graph_is_a_valid_one():
    onnx.checker.check_model(onnx.load_from_string(MODEL), full_check=True)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_they_are_the_largest_by_ascending_ids_and_of_equal_ones_the_lowest(count, session):
    logits = np.random.default_rng(0).integers(0, 40, size=(2, 3, 100)).astype(np.float32)  # many are equal
    found, ids = best(session, OrtValue.ortvalue_from_numpy(logits), count)
    order = np.sort((-logits).argsort(axis=-1, kind="stable")[..., :count], axis=-1)
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(found, np.take_along_axis(logits, order, -1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_left_to_the_sampler(value, session):
    logits = np.ones((2, 1, 100), np.float32)
    logits[1, 0, 7] = value
    assert best(session, OrtValue.ortvalue_from_numpy(logits), 1) is None


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"temperature": 0.0}, 1),
        ({"temperature": 0.0, "top_k": 5}, 1),
        ({"temperature": 0.0, "repetition_penalty": 1.1}, 100),
        ({"top_k": 5}, 5),
        ({"top_k": 500}, 100),
        ({"top_k": 5, "top_p": 0.9, "min_p": 0.1}, 5),
        ({"top_k": 5, "repetition_penalty": 1.1}, 100),
        ({"top_p": 0.9}, 100),
    ],
)
def test_a_token_is_the_one_that_all_logits_give(options, count, session):
    config = SamplingConfig(**options)
    assert largest(config, 100) == count
    logits = np.random.default_rng(0).normal(size=(50, 1, 100)).astype(np.float32).round(1)
    found, ids = best(session, OrtValue.ortvalue_from_numpy(logits), count)
    for row in range(50):
        whole, part = (np.random.default_rng(row) for _ in range(2))
        previous = np.arange(row + 1)
        assert sample(logits[row, 0], config, previous, whole) == sample(
            found[row, 0], config, previous, part, ids[row, 0]
        )


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("overflow", ["slide", "rebase"])
@pytest.mark.parametrize(
    ("options", "is_enough"),
    [
        ({"temperature": 0.0, "draft": "on"}, True),
        ({"top_k": 5, "seed": 3}, True),
        ({"top_k": 20, "seed": 3}, False),  # more than one in eight of 65: hardly less to send
        ({"top_p": 0.9, "seed": 3}, False),
    ],
)
def test_a_device_sends_them_alone_where_they_are_enough(
    options, is_enough, overflow, tiny_bundle, monkeypatch
):
    asked = []

    def counted(session, logits, count):
        asked.append(count)
        return best(session, logits, count)

    monkeypatch.setattr(decoder, "best", counted)
    monkeypatch.setattr(decoder, "_LARGE_VOCABULARY", 65)
    texts = [
        [
            completion.text
            for (completion,) in load(tiny_bundle, provider=provider, threads=1).generate(
                PROMPTS, max_new_tokens=40, overflow=overflow, **options
            )
        ]
        for provider in ("cpu", "cuda")
    ]
    assert texts[0] == texts[1]
    assert bool(asked) is is_enough


@pytest.mark.usefixtures("as_on_cuda")
def test_a_small_vocabulary_is_sent_whole(tiny_bundle, monkeypatch):
    monkeypatch.setattr(decoder, "best", None)
    load(tiny_bundle, provider="cuda", threads=1).generate("A", temperature=0.0, max_new_tokens=5)
