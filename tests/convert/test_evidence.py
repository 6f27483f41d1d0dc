"""What a text tells of a model; and whether it tells the scales of the lecture's versions apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gptblock.convert import convert
from gptblock.convert.evidence import best_fit, draw_windows, window_losses
from gptblock.errors import ConfigError, CorpusError
from gptblock.text.char import CharTokenizer

VOCAB = "\n !abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("length", "block_size", "shape"),
    [(2, 16, (1, 2)), (17, 16, (1, 17)), (33, 16, (2, 17)), (5000, 16, (312, 17)), (100_000, 16, (512, 17))],
)
def test_windows_are_spread_over_the_text(length, block_size, shape, tmp_path):
    text = "".join(np.random.default_rng(0).choice(list(VOCAB), length))
    (tmp_path / "text.txt").write_text(text, newline="")
    windows = draw_windows(str(tmp_path / "text.txt"), CharTokenizer(VOCAB), block_size)
    assert tuple(windows.shape) == shape
    ids = CharTokenizer(VOCAB).encode(text).tolist()
    assert windows[0].tolist() == ids[: shape[1]]
    assert windows[-1].tolist() == ids[-shape[1] :]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "too short"),
        ("aXbY", r"lacks: 'X' \(U\+0058\), 'Y' \(U\+0059\); give"),
        ("A\u0130BCDEFG", "and 3 more"),
    ],
)
def test_a_text_that_does_not_serve_is_refused(text, message, tmp_path):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        draw_windows(str(tmp_path / "text.txt"), CharTokenizer(VOCAB), 16)


def test_losses_are_cross_entropies_in_eval_mode(make_model, monkeypatch):
    monkeypatch.setattr("gptblock.convert.evidence._LOGITS", 3 * 16 * 65)  # three windows at once
    model = make_model().train()
    windows = torch.randint(65, (7, 17))
    losses = window_losses(model, windows)
    assert model.training
    logits = model.eval()(windows[:, :-1])
    expected = [F.cross_entropy(logits[i], windows[i, 1:]).item() for i in range(7)]
    assert losses.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("gain", "spread", "beyond", "expected"),
    [
        (0.1, 0.0, [], "b"),
        (0.1, 0.1, [0.0, 0.2], "b"),
        (-0.1, 0.1, [], "a"),
        (0.1, 1.0, [], None),
        (0.004, 0.0, [], None),
        (0.0, 0.0, [], None),
        (0.1, 0.0, [0.1, -0.01], None),
        (0.1, 0.0, [-0.01, 0.1], None),
    ],
)
def test_a_fit_must_be_clear(gain, spread, beyond, expected):
    base = torch.rand(64, dtype=torch.float64)
    noise = torch.tensor([spread, -spread], dtype=torch.float64).repeat(32)
    assert best_fit({"a": base + gain + noise, "b": base}, [base + more for more in beyond]) == expected


def test_one_window_is_no_evidence():
    assert best_fit({"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}, []) is None


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Words that repeat: what follows a letter depends on letters before it."""
    words = ["attention", "gathers", "what", "tokens", "say", "each", "head", "asks", "softly"]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(np.random.default_rng(1).choice(words, 4000)) + "\n", encoding="utf-8")
    return path


def trained(oracle, text, steps, rate):
    ids = torch.from_numpy(CharTokenizer(VOCAB).encode(text.read_text()))
    optimizer = torch.optim.AdamW(oracle.parameters(), lr=rate)
    for _ in range(steps):
        windows = ids.unfold(0, 17, 1)[torch.randint(len(ids) - 17, (16,))]
        _, loss = oracle(windows[:, :-1], windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return oracle


@pytest.mark.parametrize("scale", ["head_size", "n_embd"])
def test_a_text_tells_which_scale_a_model_was_trained_with(scale, text, lecture, vocab_file, tmp_path):
    oracle = trained(lecture(scale), text, steps=150, rate=1e-2)
    torch.save(oracle.state_dict(), tmp_path / "model.pt")
    conversion = convert(tmp_path / "model.pt", "lecture", tmp_path / "run", vocab=vocab_file, data=str(text))
    (note,) = conversion.notes
    assert note.startswith(f"scores: scaled by {scale}, as fits the data; the loss is ")
    assert f"fits: {scale}" in note
    other = "n_embd" if scale == "head_size" else "head_size"
    stated = convert(
        tmp_path / "model.pt", "lecture", tmp_path / "other", vocab=vocab_file, data=str(text), scale=other
    )
    assert f"scaled by {other}, as --scale says" in stated.notes[0]
    assert f"fits: {scale}" in stated.notes[0]
    assert stated.record.loss > conversion.record.loss + 0.005


@pytest.mark.parametrize("steps", [0, 60])
def test_hardly_trained_weights_fit_neither(steps, text, lecture, vocab_file, tmp_path):
    """After 60 steps the scores still grow, so that the larger ones of the other scale fit better."""
    oracle = trained(lecture("n_embd", n_head=2), text, steps, rate=3e-3)
    torch.save(oracle.state_dict(), tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=r"fits: neither clearly.*give --scale"):
        convert(tmp_path / "model.pt", "lecture", tmp_path / "run", vocab=vocab_file, data=str(text))
    assert not (tmp_path / "run").exists()


def test_without_scale_and_data_nothing_is_guessed(lecture, vocab_file, tmp_path):
    torch.save(lecture().state_dict(), tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=r"give --scale head_size or --scale n_embd, or .* --data"):
        convert(tmp_path / "model.pt", "lecture", tmp_path / "run", vocab=vocab_file)
