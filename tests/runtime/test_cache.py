"""Caches as on CUDA: the graph's memory apart from the host's, and the steps of one token a CUDA graph."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from gptblock.export.build import export_model
from gptblock.runtime.cache import Cache, View
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.model import load
from gptblock.runtime.session import open_session
from gptblock.runtime.verify import verify

PROMPTS = ["A", "ROMEO:", "My lord, what news"]


pytestmark = pytest.mark.usefixtures("as_on_cuda")


@pytest.fixture
def views(monkeypatch) -> list[tuple[int, bool]]:
    """The rows of each view that is made, and whether it is of a CUDA graph."""
    made = []
    make = View.__init__

    def made_here(self, decoder, session, lengths, buffers):
        made.append((len(lengths.host), session.is_captured))
        make(self, decoder, session, lengths, buffers)

    monkeypatch.setattr(View, "__init__", made_here)
    return made


@pytest.fixture(scope="module")
def bundle(make_model, tiny_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda") / "bundle"
    export_model(make_model(token_shift=1), tiny_tokenizer, folder, ["onnx"], ["fp16", "int8"])
    return folder


@pytest.mark.parametrize("use_graphs", [False, True])
def test_the_whole_proof_holds(use_graphs, bundle, views):
    result = verify(bundle, provider="cuda", threads=1, use_graphs=use_graphs)
    assert sorted(result.proofs) == ["model.fp16.onnx", "model.int8.onnx", "model.onnx"]
    assert result.failed + result.problems == []
    assert str(result.provider) == (
        f"cuda (asked for; TF32 off; CUDA graphs {'on' if use_graphs else 'off'})"
    )
    assert any(captured for _, captured in views) is use_graphs


@pytest.mark.parametrize("use_graphs", [False, True])
@pytest.mark.parametrize("overflow", ["slide", "rebase", "stop"])
def test_texts_are_those_of_the_cpu(overflow, use_graphs, tiny_bundle):
    texts = [
        [
            [completion.text for (completion,) in model.generate(prompts, **options)]
            for options in (
                {"temperature": 0.0, "max_new_tokens": 40, "overflow": overflow},
                {"seed": 3, "max_new_tokens": 40, "overflow": overflow},
            )
            for prompts in (PROMPTS, PROMPTS[:1], PROMPTS)
        ]
        for model in (
            load(tiny_bundle, provider="cpu", threads=1),
            load(tiny_bundle, provider="cuda", threads=1, use_graphs=use_graphs),
        )
    ]
    assert texts[0] == texts[1]


def test_a_cuda_graph_is_captured_once_for_a_number_of_rows(tiny_bundle, views):
    """What it reads and writes stays where it is from call to call, so one recording serves them all."""
    model = load(tiny_bundle, provider="cuda", threads=1, use_graphs=True)
    for _ in range(3):
        model.generate(PROMPTS, max_new_tokens=5)
        model.generate("A", max_new_tokens=5)
        gc.collect()
    assert sorted(views) == [(1, False), (1, True), (3, False), (3, True)]


def test_calls_at_the_same_time_have_one_graph_and_each_its_text(tiny_bundle, views):
    alone = load(tiny_bundle, provider="cpu", threads=1)
    expected = [alone.generate(prompt, seed=1, max_new_tokens=10).text for prompt in PROMPTS]
    views.clear()
    model = load(tiny_bundle, provider="cuda", threads=1, use_graphs=True)
    streams = [model.stream(prompt, seed=1, max_new_tokens=10) for prompt in PROMPTS]
    pieces = [["".join(piece) for piece in zip(*streams, strict=True)]]
    texts = ["".join(text[i] for text in pieces[0]) for i in range(3)]
    assert texts == expected
    assert sorted(views) == [(1, False)] * 3 + [(1, True)]


def test_no_more_than_a_few_numbers_of_rows_have_a_graph(tiny_bundle):
    decoder = Decoder(open_session(tiny_bundle / "model.onnx", provider="cuda", use_graphs=True))
    caches = [Cache(decoder, batch, 16) for batch in range(1, 7)]
    assert [cache.for_steps is not None for cache in caches] == [True] * 4 + [False] * 2
    again = Cache(decoder, 2, 16)
    assert again.for_steps is None  # taken
    del caches, again
    gc.collect()
    assert Cache(decoder, 2, 16).for_steps is not None


def test_what_a_call_leaves_behind_reaches_no_other(tiny_bundle):
    decoder = Decoder(open_session(tiny_bundle / "model.onnx", provider="cuda", use_graphs=True))
    ids = np.random.default_rng(0).integers(0, 65, size=(2, 16))
    expected = decoder.logits(ids).copy()
    gc.collect()
    for buffer in decoder.slots._slots[2].buffers.values():
        buffer.value.update_inplace(np.full_like(buffer.host, np.nan))
    np.testing.assert_array_equal(decoder.logits(ids), expected)
