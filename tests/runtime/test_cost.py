"""What a lower precision costs is measured on the text that the training validated on, or on none."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from gptblock.bundle.manifest import TrainingRecord
from gptblock.errors import CorpusError, InputError
from gptblock.model import loss
from gptblock.runtime.cost import Excerpt, Reading, cost_of, draw_excerpt, read

TEXT = "".join("abc de\n"[i * i % 7] for i in range(3000))


@pytest.fixture
def training(tmp_path) -> TrainingRecord:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    sha256 = hashlib.sha256(TEXT.encode()).hexdigest()
    return TrainingRecord("text.txt", sha256, 1, 1.0, 1.0, "gptblock train", {"data": str(path)})


def test_it_is_the_validation_part_of_the_trainings_text(tiny_tokenizer, training):
    excerpt = draw_excerpt(tiny_tokenizer, 16, training)
    part = tiny_tokenizer.encode(TEXT[2700:])
    assert excerpt.name == "text.txt, validation part"
    assert excerpt.windows.shape == (18, 17)
    np.testing.assert_array_equal(excerpt.windows[0], part[:17])
    np.testing.assert_array_equal(excerpt.windows[-1], part[-17:])


def test_of_a_long_text_some_windows_are_taken_and_of_a_short_one_a_shorter(tiny_tokenizer, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(TEXT * 100, encoding="utf-8")
    assert draw_excerpt(tiny_tokenizer, 16, None, str(path)).windows.shape == (1024, 17)
    path.write_text("abcde", encoding="utf-8")
    assert draw_excerpt(tiny_tokenizer, 16, None, str(path)).windows.shape == (1, 5)


def test_another_text_is_taken_as_a_whole(tiny_tokenizer, training, tmp_path):
    (tmp_path / "other.txt").write_text("abcd" * 10, encoding="utf-8")
    excerpt = draw_excerpt(tiny_tokenizer, 16, training, str(tmp_path / "other.txt"))
    assert (excerpt.name, excerpt.windows.shape) == ("other.txt", (2, 17))


def test_a_text_that_is_not_the_trainings_is_refused(tiny_tokenizer, training, tmp_path):
    altered = dataclasses.replace(training, data_sha256="0" * 64)
    with pytest.raises(CorpusError, match="is not the text of the training any more; --data names another"):
        draw_excerpt(tiny_tokenizer, 16, altered)
    with pytest.raises(CorpusError, match="names no text; --data names one"):
        draw_excerpt(tiny_tokenizer, 16, None)
    with pytest.raises(CorpusError, match="neither a file"):
        draw_excerpt(tiny_tokenizer, 16, training, str(tmp_path / "nowhere"))
    for text, error in (("a", CorpusError), ("ab\u00e9", InputError)):
        (tmp_path / "bad.txt").write_text(text, encoding="utf-8")
        with pytest.raises(error):
            draw_excerpt(tiny_tokenizer, 16, training, str(tmp_path / "bad.txt"))


def test_the_loss_is_pytorchs(decoder, tiny_model):
    windows = np.random.default_rng(0).integers(0, 65, size=(5, 17))
    reading = read(decoder, Excerpt("random", windows))
    logits = tiny_model(torch.from_numpy(windows[:, :-1])).detach()
    expected = loss(logits, torch.from_numpy(windows[:, 1:])).item()
    assert reading.losses.shape == (5, 16)
    assert reading.losses.mean() == pytest.approx(expected, abs=1e-6)
    np.testing.assert_array_equal(reading.choices, logits.argmax(-1))


def test_a_text_larger_than_a_batch_is_read_in_parts(decoder, monkeypatch):
    excerpt = Excerpt("random", np.random.default_rng(0).integers(0, 65, size=(5, 17)))
    whole = read(decoder, excerpt)
    monkeypatch.setattr("gptblock.runtime.cost._LOGITS", 2 * 16 * 65)
    parts = read(decoder, excerpt)
    np.testing.assert_allclose(parts.losses, whole.losses, atol=1e-5)


def test_the_cost_is_a_difference_and_a_share():
    excerpt = Excerpt("a text", np.zeros((1, 5), np.int64))
    fp32 = Reading(np.array([[1.0, 1, 1, 1]]), np.array([[0, 1, 2, 3]]))
    lower = Reading(np.array([[1.0, 1, 1, 2]]), np.array([[0, 1, 2, 0]]))
    cost = cost_of(excerpt, fp32, lower)
    assert (cost.fp32_loss, cost.loss, cost.changed, cost.tokens) == (1.0, 1.25, 0.25, 4)
    assert str(cost) == (
        "loss 1.2500 nats a token, +0.2500 against fp32; "
        "another token the likeliest at 25.00% of 4 positions (a text)"
    )
