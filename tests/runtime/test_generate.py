"""The token loop against the torch reference, token for token, alone and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch

from gptblock.config import Overflow, SamplingConfig
from gptblock.export.build import export_model
from gptblock.model.gpt import GPT
from gptblock.runtime.cache import Cache
from gptblock.runtime.decoder import Decoder, Scores
from gptblock.runtime.generate import Drafting, Row, decode
from gptblock.runtime.model import load

BLOCK_SIZE = 16
POLICIES = get_args(Overflow)
DEMO = Path(__file__).parents[2] / "artifacts" / "demo"
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "greedy with penalty": {"temperature": 0.0, "repetition_penalty": 1.3},
    "sampled": {},
    "cool": {"temperature": 0.6},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "penalty": {"repetition_penalty": 1.5},
    "everything": {"repetition_penalty": 1.2, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
}
EVERYTHING = SamplingConfig(**SETTINGS["everything"])
# of a batch: within, at and beyond block_size, so that rows overflow at different times
LENGTHS = [1, 16, 3, 15, 17, 40, 8]


def prompt_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 65, size=length)


def row_of(length: int, new: int, sample: int = 0) -> Row:
    return Row(prompt_of(length), new, np.random.default_rng([7, sample]))


def finish(
    decoder: Decoder,
    rows: Sequence[Row],
    sampling: SamplingConfig,
    overflow: Overflow,
    drafting: Drafting = "off",
) -> None:
    for _ in decode(decoder, rows, sampling, overflow, drafting):
        pass


def by_torch(
    model: GPT, length: int, new: int, sampling: SamplingConfig, overflow: Overflow
) -> list[list[int]]:
    """Two samples of one prompt, from the torch reference: the continuations."""
    prompts = torch.from_numpy(prompt_of(length)).expand(2, -1)
    return model.generate(prompts, new, sampling, seed=7, overflow=overflow)[:, length:].tolist()


def by_runtime(
    decoder: Decoder,
    length: int,
    new: int,
    sampling: SamplingConfig,
    overflow: Overflow,
    drafting: Drafting = "off",
) -> list[list[int]]:
    rows = [row_of(length, new, sample) for sample in range(2)]
    finish(decoder, rows, sampling, overflow, drafting)
    return [row.new_ids.tolist() for row in rows]


@pytest.fixture
def steps(decoder, monkeypatch) -> list[tuple[int, int, int]]:
    """(rows, T, capacity) of each step, none of which may exceed its cache."""
    seen = []
    step = decoder.step_best

    def watched(cache, ids, positions, valid, count):
        assert cache.length.max() + ids.shape[1] <= cache.capacity <= BLOCK_SIZE
        seen.append((*ids.shape, cache.capacity))
        return step(cache, ids, positions, valid, count)

    monkeypatch.setattr(decoder, "step_best", watched)
    return seen


@pytest.mark.parametrize("overflow", POLICIES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_reproduces_torch_with_all_settings(settings, overflow, tiny_model, decoder):
    sampling = SamplingConfig(**SETTINGS[settings])
    expected = by_torch(tiny_model, 5, 30, sampling, overflow)
    for drafting in get_args(Drafting):
        assert by_runtime(decoder, 5, 30, sampling, overflow, drafting) == expected
    assert len(expected[0]) == (12 if overflow == "stop" else 30)
    assert (expected[0] == expected[1]) is settings.startswith("greedy")


@pytest.mark.parametrize("overflow", POLICIES)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
def test_reproduces_torch_from_prompts_of_any_length(length, overflow, tiny_model, decoder):
    expected = by_torch(tiny_model, length, 36, EVERYTHING, overflow)
    assert by_runtime(decoder, length, 36, EVERYTHING, overflow) == expected


@pytest.fixture(scope="module")
def shifted(make_model, tiny_tokenizer, tmp_path_factory) -> tuple[GPT, Decoder]:
    """A model whose feed-forward reads the three tokens before, too, and its graph."""
    model = make_model(token_shift=3, positions="rope")
    folder = tmp_path_factory.mktemp("shifted") / "bundle"
    export_model(model, tiny_tokenizer, folder, ["onnx"])
    return model, load(folder, provider="cpu", threads=1).decoder


@pytest.mark.parametrize("overflow", POLICIES)
@pytest.mark.parametrize("drafting", get_args(Drafting))
def test_a_token_shift_is_cached_as_torch_computes_it(drafting, overflow, shifted):
    """Rows of unlike lengths, drafts that are taken back, and windows that begin anew."""
    model, decoder = shifted
    greedy = SamplingConfig(temperature=0.0)
    rows = [row_of(length, 36) for length in LENGTHS]
    finish(decoder, rows, greedy, overflow, drafting)
    for length, row in zip(LENGTHS, rows, strict=True):
        assert row.new_ids.tolist() == by_torch(model, length, 36, greedy, overflow)[0], length
    assert (sum(row.drafted_tokens for row in rows) > 0) is (drafting == "on")


def test_the_policies_agree_within_block_size_and_differ_beyond(decoder):
    greedy = SamplingConfig(temperature=0.0)
    slide, rebase, stop = (by_runtime(decoder, 5, 40, greedy, overflow)[0] for overflow in POLICIES)
    assert slide[:12] == rebase[:12] == stop  # the last is drawn from a full window
    assert slide != rebase


@pytest.mark.parametrize("overflow", POLICIES)
def test_an_empty_prompt_starts_from_token_0(overflow, tiny_model, decoder):
    row = row_of(0, 30)
    finish(decoder, [row], EVERYTHING, overflow)
    start = torch.zeros(1, 1, dtype=torch.int64)
    expected = tiny_model.generate(start, 30, EVERYTHING, seed=7, overflow=overflow)[0]
    assert row.ids.tolist() == expected.tolist()
    assert row.new_ids.tolist() == expected[1:].tolist()
    assert row.prompt_tokens == 0


@pytest.mark.parametrize("drafting", ["off", "on"])
@pytest.mark.parametrize("overflow", POLICIES)
def test_a_row_of_a_batch_gets_what_it_gets_alone(overflow, drafting, decoder, steps):
    together = [row_of(length, 36, sample) for length in LENGTHS for sample in range(2)]
    finish(decoder, together, EVERYTHING, overflow, drafting)
    assert steps[0][0] >= 2 * (len(LENGTHS) - 2)  # it was a batch
    alone = [row_of(length, 36, sample) for length in LENGTHS for sample in range(2)]
    for row in alone:
        finish(decoder, [row], EVERYTHING, overflow)
    assert [row.ids.tolist() for row in together] == [row.ids.tolist() for row in alone]
    assert [row.finish_reason for row in together] == [row.finish_reason for row in alone]


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("drafting", ["off", "on"])
@pytest.mark.parametrize("overflow", POLICIES)
def test_rows_that_end_early_leave_the_others_alone(overflow, drafting, decoder):
    """Rows end at their first token, before, at and beyond their overflow."""
    ends = {0: 1, 1: 4, 2: 13, 3: 14, 5: 20, 6: 9}  # row: tokens
    rows = [row_of(length, 30) for length in LENGTHS]
    for row in decode(decoder, rows, EVERYTHING, overflow, drafting):
        if len(row.new_ids) == ends.get(rows.index(row)):
            row.finish_reason = "stop"
    for i, (length, row) in enumerate(zip(LENGTHS, rows, strict=True)):
        whole = row_of(length, 30)
        finish(decoder, [whole], EVERYTHING, overflow)
        assert row.new_ids.tolist() == whole.new_ids[: ends.get(i)].tolist()
        assert row.finish_reason == ("stop" if len(row.new_ids) == ends.get(i) else whole.finish_reason)


@pytest.mark.parametrize(
    ("length", "new", "overflow", "tokens", "reason"),
    [
        (5, 0, "slide", 0, "length"),
        (5, 1, "slide", 1, "length"),
        (5, 1, "stop", 1, "length"),
        (5, 12, "stop", 12, "length"),  # the last one is drawn from a full window
        (5, 13, "stop", 12, "overflow"),
        (15, 2, "stop", 2, "length"),
        (15, 3, "stop", 2, "overflow"),
        (16, 1, "stop", 1, "length"),
        (16, 2, "stop", 1, "overflow"),
        (17, 1, "stop", 0, "overflow"),
        (17, 0, "stop", 0, "length"),
        (17, 1, "slide", 1, "length"),
        (17, 20, "rebase", 20, "length"),
        (0, 16, "stop", 16, "length"),
        (0, 17, "stop", 16, "overflow"),
    ],
)
def test_how_a_row_finishes(length, new, overflow, tokens, reason, decoder, steps):
    row = row_of(length, new)
    finish(decoder, [row], EVERYTHING, overflow)
    assert (len(row.new_ids), row.finish_reason) == (tokens, reason)
    assert row.remaining == new - tokens
    assert len(steps) == tokens  # none is read for a token that nobody wants
    drafted = row_of(length, new)
    finish(decoder, [drafted], EVERYTHING, overflow, "on")
    assert (drafted.ids.tolist(), drafted.finish_reason) == (row.ids.tolist(), reason)


@pytest.mark.parametrize(
    ("overflow", "widths"),
    [
        ("slide", [5] + 11 * [1] + 8 * [16]),
        ("rebase", [5] + 11 * [1] + [8] + 7 * [1]),
        ("stop", [5] + 11 * [1]),
    ],
)
def test_reads_one_token_a_step_within_block_size(overflow, widths, decoder, steps):
    finish(decoder, [row_of(5, 20)], EVERYTHING, overflow)
    assert [width for _, width, _ in steps] == widths


def test_allocates_what_the_call_needs(decoder, steps):
    finish(decoder, [row_of(2, 4), row_of(5, 4)], EVERYTHING, "slide")
    assert {capacity for _, _, capacity in steps} == {9}


def test_nothing_to_continue(decoder):
    assert list(decode(decoder, [], EVERYTHING, "slide")) == []


def test_a_row_is_yielded_with_each_of_its_tokens(decoder):
    row = row_of(3, 6)
    lengths = [taken.length for taken in decode(decoder, [row], EVERYTHING, "slide")]
    assert lengths == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("overflow", POLICIES)
def test_a_row_that_is_ended_while_another_is_taken_gets_no_more(overflow, decoder):
    ended, other = row_of(3, 12), row_of(5, 12)
    for row in decode(decoder, [ended, other], EVERYTHING, overflow):
        if row is other and len(row.new_ids) == 4:
            ended.finish_reason = "stop"
    assert (len(ended.new_ids), len(other.new_ids)) == (4, 12)


def test_a_row_within_block_size_takes_turns_with_one_beyond(decoder):
    within, beyond = row_of(3, 12), row_of(14, 12)
    for row in decode(decoder, [within, beyond], EVERYTHING, "slide"):
        assert abs(len(within.new_ids) - len(beyond.new_ids)) <= 1, row.length


def test_rows_go_on_together_beyond_block_size(decoder, steps):
    finish(decoder, [row_of(3, 50), row_of(10, 50 - 7), row_of(16, 50 - 13)], EVERYTHING, "rebase")
    assert [batch for batch, _, _ in steps] == 50 * [3]  # for want of one another, none reads alone
    starts = [i for i, (_, width, _) in enumerate(steps) if width > 1]
    assert np.diff(starts).tolist() == [14, 9, 9, 9, 9][: len(starts) - 1]


@pytest.fixture(scope="module")
def demo() -> Decoder:
    return load(DEMO, provider="cpu", threads=1).decoder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["decoder", "demo"])
def test_drafting_changes_no_token(name, temperature, request):
    decoder = request.getfixturevalue(name)
    sampling = SamplingConfig(temperature=temperature)
    drafted = accepted = 0
    for length in range(1, 33):
        plain, guessed = row_of(length, 60, length), row_of(length, 60, length)
        finish(decoder, [plain], sampling, "rebase")
        finish(decoder, [guessed], sampling, "rebase", "on")
        assert guessed.ids.tolist() == plain.ids.tolist()
        drafted += guessed.drafted_tokens
        accepted += guessed.accepted_tokens
    assert 0 < accepted < drafted  # both kinds were met


CHAIN = np.array(
    [[0.7, 0.1, 0.1, 0.1], [0.05, 0.05, 0.6, 0.3], [0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.2, 0.1]]
)


def test_drafted_tokens_have_the_models_distribution(monkeypatch):
    """A Markov chain in the model's place, whose transitions are then counted."""

    def step_best(cache, ids, positions, valid, count):
        assert count == 4
        cache.length = cache.length + (ids.shape[1] if valid is None else valid)
        return Scores(np.log(CHAIN[np.take_along_axis(ids, positions, 1)]).astype(np.float32))

    def cache(_, batch, capacity):
        return SimpleNamespace(length=np.zeros(batch, np.int64), capacity=capacity, batch=batch)

    monkeypatch.setattr("gptblock.runtime.generate.Cache", cache)
    rows = [Row(np.zeros(1, np.int64), 5000, np.random.default_rng([7, i])) for i in range(4)]
    metadata = SimpleNamespace(model=SimpleNamespace(vocab_size=4))
    decoder = SimpleNamespace(block_size=64, metadata=metadata, step_best=step_best)
    finish(decoder, rows, SamplingConfig(), "rebase", "on")
    counts = np.zeros((4, 4))
    for row in rows:
        np.add.at(counts, (row.ids[:-1], row.ids[1:]), 1)
    expected = counts.sum(1, keepdims=True) * CHAIN
    assert sum(row.accepted_tokens for row in rows) > 5000
    assert ((counts - expected) ** 2 / expected).sum() < 32.9  # chi-square, 12 degrees, 0.1%


def test_drafting_reads_several_tokens_a_step(decoder, steps):
    row = row_of(5, 60)
    finish(decoder, [row], SamplingConfig(temperature=0.0), "rebase", "on")
    assert row.accepted_tokens >= 5
    assert len(steps) == 60 - row.accepted_tokens


@pytest.mark.parametrize(("rows", "drafts"), [(1, True), (2, False)])
def test_a_batch_drafts_only_when_told_to(rows, drafts, decoder):
    batch = [row_of(5, 12, i) for i in range(rows)]
    finish(decoder, batch, SamplingConfig(temperature=0.0), "stop", "auto")
    assert all(bool(row.draft) is drafts for row in batch)


def test_what_is_drawn_is_drafted_only_when_told_to(decoder):
    for drafting, drafts in (("auto", False), ("on", True)):
        row = row_of(5, 12)
        finish(decoder, [row], EVERYTHING, "stop", drafting)
        assert bool(row.draft) is drafts


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_beyond_block_size_goes_on_in_the_cache_it_had(rows, decoder, monkeypatch):
    made = []

    def counted(*args):
        made.append(args[1:])
        return Cache(*args)

    monkeypatch.setattr("gptblock.runtime.generate.Cache", counted)
    finish(
        decoder,
        [Row(np.zeros(1, np.int64), 60, np.random.default_rng(i)) for i in range(rows)],
        SamplingConfig(),
        "rebase",
    )
    assert made == [(rows, BLOCK_SIZE)]
