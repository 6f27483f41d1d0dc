"""The graph and its cache: chunks against torch, what is refused, and whose cache is whose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from gptblock.errors import CorruptError, InputError, ProviderError
from gptblock.export.build import export_model
from gptblock.runtime.cache import Cache
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.model import Model, load
from gptblock.runtime.session import Provider, open_session
from gptblock.runtime.verify import verify

IDS = np.random.default_rng(0).integers(0, 65, size=(3, 16))


@pytest.fixture(scope="module")
def expected(tiny_model) -> np.ndarray:
    """Torch's logits of IDS: (3, 16, 65)."""
    with torch.no_grad():
        return tiny_model(torch.from_numpy(IDS)).numpy()


@pytest.fixture(params=["model.cpu.onnx", "model.onnx"])
def decoder(tiny_bundle, request) -> Decoder:
    return Decoder(open_session(tiny_bundle / request.param, provider="cpu", threads=1))


def everywhere(batch: int, time: int) -> np.ndarray:
    return np.broadcast_to(np.arange(time), (batch, time))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("time", [1, 2, 8, 15, 16])
def test_logits_are_torchs(batch, time, decoder, expected):
    logits = decoder.logits(IDS[:batch, :time])
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected[:batch, :time], atol=1e-5, rtol=0)


@pytest.mark.parametrize("split", [[16], [1] * 16, [4, 12], [4, 1, 11], [15, 1]])
def test_chunks_continue_where_the_cache_ends(split, decoder, expected):
    cache = Cache(decoder, 3, 16)
    end = 0
    for width in split:
        logits = decoder.step(cache, IDS[:, end : end + width], everywhere(3, width))
        np.testing.assert_allclose(logits, expected[:, end : end + width], atol=1e-5, rtol=0)
        end += width
        assert cache.length.tolist() == [end] * 3


def test_only_the_positions_asked_for(decoder, expected):
    positions = np.array([[0, 15], [7, 7], [3, 1]])
    logits = decoder.step(Cache(decoder, 3, 16), IDS, positions)
    assert logits.shape == (3, 2, 65)
    for row, (first, second) in enumerate(positions):
        np.testing.assert_allclose(logits[row], expected[row, [first, second]], atol=1e-5, rtol=0)


def test_rows_of_unlike_lengths(decoder, expected):
    """Padding is written, and overwritten by what really follows."""
    cache = Cache(decoder, 3, 16)
    valid = np.array([2, 9, 5])
    padded = np.where(np.arange(9) < valid[:, None], IDS[:, :9], 64)
    logits = decoder.step(cache, padded, valid[:, None] - 1, valid)[:, 0]
    np.testing.assert_allclose(logits, expected[range(3), valid - 1], atol=1e-5, rtol=0)
    assert cache.length.tolist() == [2, 9, 5]
    following = np.stack([IDS[row, length : length + 7] for row, length in enumerate(valid)])  # (3, 7)
    logits = decoder.step(cache, following, everywhere(3, 7))
    for row, length in enumerate(valid):
        np.testing.assert_allclose(logits[row], expected[row, length : length + 7], atol=1e-5, rtol=0)


def test_caches_of_one_decoder_are_apart(decoder, expected):
    first, second = Cache(decoder, 1, 16), Cache(decoder, 1, 16)
    decoder.step(first, IDS[:1, :8], everywhere(1, 8))
    decoder.step(second, IDS[1:2, :8], everywhere(1, 8))
    logits = decoder.step(first, IDS[:1, 8:], everywhere(1, 8))
    np.testing.assert_allclose(logits, expected[:1, 8:], atol=1e-5, rtol=0)


def test_a_cache_keeps_its_memory(decoder, expected):
    cache = Cache(decoder, 3, 16)
    taken = [np.full((3, 16, 32), np.nan, np.float32) for _ in range(100)]  # all of that size that is free
    decoder.step(cache, IDS[:, :8], everywhere(3, 8))
    logits = decoder.step(cache, IDS[:, 8:], everywhere(3, 8))
    np.testing.assert_allclose(logits, expected[:, 8:], atol=1e-5, rtol=0)
    assert all(np.isnan(array).all() for array in taken)


def test_a_chunk_beyond_the_capacity_is_a_fault_of_the_caller(decoder):
    cache = Cache(decoder, 1, 8)
    decoder.step(cache, IDS[:1, :5], everywhere(1, 5))
    with pytest.raises(AssertionError, match="does not fit"):
        decoder.step(cache, IDS[:1, :4], everywhere(1, 4))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((1, 17), np.int64), r"1 to 16 tokens \(block_size\) a row: got 17$"),
        (np.zeros((2, 0), np.int64), r"1 to 16 tokens \(block_size\) a row: got 0$"),
        (np.array([[0, 65]]), r"from 0 to 64 \(vocab_size 65\): got 0 to 65$"),
        (np.array([[-1, 3]]), r"from 0 to 64 \(vocab_size 65\): got -1 to 3$"),
    ],
)
def test_ids_that_the_model_cannot_read(ids, message, decoder, capfd):
    with pytest.raises(InputError, match=message):
        decoder.logits(ids)
    assert capfd.readouterr() == ("", "")  # nor does ONNX Runtime complain


def test_no_rows_have_no_logits(decoder):
    assert decoder.logits(np.zeros((0, 4), np.int64)).shape == (0, 4, 65)


def rename_input(graph: onnx.ModelProto) -> None:
    graph.graph.input[1].name = "sequence_length"
    for node in graph.graph.node:
        for i, name in enumerate(node.input):
            if name == "past_length":
                node.input[i] = "sequence_length"


def drop_layer(graph: onnx.ModelProto) -> None:
    """The metadata then promise a layer less than the graph has."""
    entry = next(entry for entry in graph.metadata_props if entry.key == "gptblock.model")
    entry.value = entry.value.replace('"n_layer": 2', '"n_layer": 1')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename_input, "inputs are input_ids, sequence_length, .* has input_ids, past_length, "),
        (drop_layer, r"past_key_values\.1\.value; a model exported by gptblock has .*0\.value$"),
    ],
)
def test_refuses_a_graph_with_other_inputs(change, message, altered):
    session = open_session(altered(change), provider="cpu", threads=1)
    with pytest.raises(CorruptError, match=message):
        Decoder(session)


def test_a_tokenizer_of_another_size_is_refused(altered):
    def shorten(graph):
        next(
            p for p in graph.metadata_props if p.key == "gptblock.tokenizer"
        ).value = '{"type": "char", "vocab": "abc"}'

    with pytest.raises(CorruptError, match="the model has vocab_size 65 and its tokenizer 3 symbols"):
        Decoder(open_session(altered(shorten), provider="cpu"))


@pytest.mark.parametrize(
    ("tokens", "message"), [(64, None), (65, None), (66, "vocab_size 65 and its tokenizer 66")]
)
def test_only_a_subword_vocabulary_may_have_fewer_tokens(tokens, message, altered):
    """Checkpoints come with padded embeddings; their ids beyond the vocabulary are shown as U+FFFD."""
    vocab = {f"t{token}": token for token in range(tokens)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "none"}

    def subword(graph):
        entry = next(p for p in graph.metadata_props if p.key == "gptblock.tokenizer")
        entry.value = json.dumps({"type": "subword", "json": {"version": "1.0", "model": model}})

    session = open_session(altered(subword), provider="cpu", threads=1)
    if message:
        with pytest.raises(CorruptError, match=message):
            Decoder(session)
    else:
        assert Decoder(session).tokenizer.decode([1, 64]) == "t1 " + ("t64" if tokens == 65 else "\ufffd")


def room(cache: Cache) -> int:
    return cache.view(cache._decoder.session)._binding.get_outputs()[1].shape()[-2]


def test_a_cache_grows_as_it_fills_and_no_further_than_its_capacity(standard, expected, monkeypatch):
    monkeypatch.setattr("gptblock.runtime.cache._GROWTH", 3)
    cache = Cache(standard, 3, 16)
    rooms = []
    for at in range(16):
        logits = standard.step(cache, IDS[:, at : at + 1], everywhere(3, 1))
        np.testing.assert_allclose(logits[:, 0], expected[:, at], atol=1e-5, rtol=0)
        rooms.append(room(cache))
    assert rooms == [4] * 4 + [8] * 4 + [12] * 4 + [16] * 4


def test_a_fused_graph_has_all_its_room_at_once(tiny):
    """It reads no further than the tokens that are there."""
    cache = Cache(tiny.decoder, 3, 16)
    cache.reserve(1)
    assert room(cache) == 16


def test_a_fused_graph_is_for_the_cpu(tiny):
    cuda = replace(tiny.decoder.session, provider=Provider("cuda", 0, "asked for"))
    with pytest.raises(
        ProviderError, match=r"for ONNX Runtime's CPU provider: run it with --provider cpu, or"
    ):
        Decoder(cuda)


@pytest.fixture(scope="module")
def eight_bits(make_model, tiny_tokenizer, tmp_path_factory) -> Path:
    """A bundle of a model wide enough for all its matrices to be in int8."""
    folder = tmp_path_factory.mktemp("int8") / "bundle"
    export_model(make_model(n_embd=64), tiny_tokenizer, folder, ["onnx"], ["int8"])
    return folder


@pytest.mark.parametrize("is_fast", [True, False])
def test_many_tokens_of_int8_are_read_in_float32_where_integers_are_slow(eight_bits, is_fast, monkeypatch):
    monkeypatch.setattr("gptblock.runtime.decoder.multiplies_bytes", lambda: is_fast)
    decoder = load(eight_bits, precision="int8", provider="cpu", threads=1).decoder
    ids = np.random.default_rng(0).integers(0, 65, (4, 16))
    few = np.concatenate([decoder.logits(row[None]) for row in ids])  # 16 tokens each
    many = decoder.logits(ids)  # 64
    assert (decoder._for_prompts is None) is is_fast
    difference = np.abs(few - many).max()
    assert difference < 1e-5 if is_fast else 1e-5 < difference < 0.06 * np.abs(few).max()
    np.testing.assert_array_equal(many, decoder.logits(ids))


def test_many_tokens_of_int8_pass_the_proof(eight_bits, monkeypatch):
    monkeypatch.setattr("gptblock.runtime.decoder.multiplies_bytes", lambda: False)
    monkeypatch.setattr("gptblock.runtime.decoder._LONG", 9)  # some chunks in this way, some in that
    opened = {}

    def watched(graph, *, batch_graph, **options):
        opened[graph.name] = batch_graph and batch_graph.name
        return open_session(graph, batch_graph=batch_graph, **options)

    monkeypatch.setattr("gptblock.runtime.verify.open_session", watched)
    result = verify(eight_bits, precision="int8", provider="cpu", threads=1)
    assert list(result.proofs) == ["model.int8.onnx", "model.int8.batch.onnx", "model.int8.cpu.onnx"]
    assert result.failed == []
    assert opened == {  # the last as it is run
        "model.int8.onnx": None,
        "model.int8.batch.onnx": None,
        "model.int8.cpu.onnx": "model.int8.batch.onnx",
    }


@pytest.mark.parametrize("is_fast", [True, False])
def test_many_rows_of_int8_are_multiplied_in_float32_where_integers_are_slow(
    eight_bits, is_fast, monkeypatch
):
    """The model is 64 wide and reads 16 tokens: the full caches of 24 rows are as large as its weights."""
    monkeypatch.setattr("gptblock.runtime.decoder.multiplies_bytes", lambda: is_fast)
    model = load(eight_bits, precision="int8", provider="cpu", threads=1)
    batch = Decoder(open_session(eight_bits / "model.int8.batch.onnx", provider="cpu", threads=1))
    ids = np.random.default_rng(0).integers(0, 65, (24, 2))
    fewer = model.logits(ids[:23])
    assert np.abs(fewer - batch.logits(ids[:23])).max() > 1e-5
    assert "_for_batches" not in vars(model.decoder)  # not opened before there is a use for it
    difference = np.abs(model.logits(ids) - batch.logits(ids)).max()
    assert difference > 1e-5 if is_fast else difference == 0
    texts = [
        [completion.text for (completion,) in each.generate(["A"] * 24, max_new_tokens=40, seed=1)]
        for each in (model, Model(batch))
    ]
    assert is_fast or texts[0] == texts[1]
    assert len(set(texts[0])) == 1  # one seed, one prompt


def test_fp32_has_one_session(tiny, monkeypatch):
    monkeypatch.setattr("gptblock.runtime.decoder.multiplies_bytes", lambda: False)
    decoder = Decoder(tiny.decoder.session)
    assert decoder.logits(np.zeros((4, 16), np.int64)).shape == (4, 16, 65)
    assert decoder._for_prompts is None
    assert decoder.logits(np.zeros((30, 2), np.int64)).shape == (30, 2, 65)
    assert decoder._for_batches is None
