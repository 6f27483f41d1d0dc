"""nanoGPT's ckpt.pt and meta.pkl, against a model written from their description."""

from __future__ import annotations

import pickle

import pytest
import torch

from gptblock.convert import convert
from gptblock.convert.nanogpt import read_nanogpt
from gptblock.errors import ConfigError, CorruptError
from gptblock.training import load_model

VOCAB = "\n !abcdefghijklmnopqrstuvwxyz"
SIZES = {
    "bias": {},
    "no bias": {"bias": False},
    "odd heads": {"n_embd": 21, "n_head": 3, "block_size": 9},
    "one layer": {"n_layer": 1, "n_head": 1},
    "padded": {"vocab_size": 64},
}


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("changes", SIZES.values(), ids=SIZES)
def test_logits_are_those_of_nanogpt(changes, prefix, nanogpt, meta, difference, record_property, tmp_path):
    oracle = nanogpt(**changes)
    for name, parameter in oracle.named_parameters():
        if ".ln_" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    oracle.save(tmp_path / "ckpt.pt", prefix=prefix)
    meta(tmp_path / "meta.pkl")
    conversion = convert(tmp_path / "ckpt.pt", "nanogpt", tmp_path / "run")
    run = load_model(tmp_path / "run")
    worst = difference(run.model, oracle, len(VOCAB))
    record_property("worst", worst)
    assert worst < 1e-5
    assert run.tokenizer.to_dict() == {"type": "char", "vocab": VOCAB}
    padding = "vocabulary: of 64 rows 35 are padding, and left out"
    assert conversion.notes == ((padding,) if "vocab_size" in changes else ())
    assert run.model.config.dropout == 0.1
    assert run.model.config.tie_weights


def test_symbols_in_another_order_keep_their_rows(nanogpt, meta, tmp_path):
    oracle = nanogpt(vocab_size=32)
    order = "".join(VOCAB[i] for i in torch.randperm(len(VOCAB)).tolist())
    reading = read_nanogpt(oracle.save(tmp_path / "ckpt.pt"), meta(tmp_path / "other.pkl", order), None)
    assert reading.tokenizer.vocab == VOCAB
    rows = oracle.lm_head.weight
    for index, symbol in enumerate(VOCAB):
        assert torch.equal(reading.weights["token_embedding.weight"][index], rows[order.index(symbol)])
    assert reading.config.vocab_size == len(VOCAB)
    convert(tmp_path / "ckpt.pt", "nanogpt", tmp_path / "run", vocab=tmp_path / "other.pkl")
    run = load_model(tmp_path / "run")
    theirs = oracle(torch.tensor([[order.index(symbol) for symbol in "hello"]]))
    with torch.no_grad():
        ours = run.model(torch.from_numpy(run.tokenizer.encode("hello")[None]))
    assert (ours - theirs[..., [order.index(symbol) for symbol in VOCAB]]).abs().max() < 1e-5


def test_a_model_of_other_tokens_takes_a_tokenizer(nanogpt, tokenizer_json, tmp_path):
    path = nanogpt(vocab_size=64).save(tmp_path / "ckpt.pt")
    with pytest.raises(ConfigError, match=r"no meta\.pkl beside it: give --vocab META.PKL .* or --tokenizer"):
        read_nanogpt(path, None, None)
    reading = read_nanogpt(path, None, tokenizer_json(tmp_path, 60))
    assert (reading.config.vocab_size, reading.tokenizer.vocab_size) == (60, 60)
    assert reading.notes == ("vocabulary: of 64 rows 4 are padding, and left out",)


@pytest.mark.parametrize("rows", [30, 31, 33])
def test_a_vocabulary_that_is_not_padded_but_another_is_refused(rows, nanogpt, meta, tmp_path):
    path = nanogpt(vocab_size=rows).save(tmp_path / "ckpt.pt")
    with pytest.raises(ConfigError, match=f"has 29 characters and the model in .* has {rows} rows"):
        read_nanogpt(path, meta(tmp_path / "meta.pkl"), None)


def test_masks_are_passed_over_and_old_files_have_biases(nanogpt, meta, tmp_path):
    oracle = nanogpt()
    del oracle.args["bias"]
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 16, 16).tril() for layer in range(2)}
    path = oracle.save(tmp_path / "ckpt.pt", model=oracle.state_dict() | masks)
    reading = read_nanogpt(path, meta(tmp_path / "meta.pkl"), None)
    assert reading.config.bias == "gpt2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_args": None}, "no checkpoint of nanoGPT"),
        ({"model_args": {"n_layer": 2}}, "no checkpoint of nanoGPT"),
        ({"model": {"a": 1}}, "'a' are no tensors"),
    ],
)
def test_other_files_are_refused(changes, message, nanogpt, meta, tmp_path):
    path = nanogpt().save(tmp_path / "ckpt.pt", **changes)
    with pytest.raises(CorruptError) as caught:
        read_nanogpt(path, meta(tmp_path / "meta.pkl"), None)
    assert message in str(caught.value)


def test_model_args_that_do_not_fit_the_tensors_are_refused(nanogpt, meta, tmp_path):
    oracle = nanogpt()
    oracle.args |= {"n_layer": 1, "bias": False}
    with pytest.raises(CorruptError, match=r"unknown: .*h\.0\.ln_1\.bias, .*h\.1\.mlp\.c_proj\.bias"):
        read_nanogpt(oracle.save(tmp_path / "ckpt.pt"), meta(tmp_path / "meta.pkl"), None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"itos": {0: "a"}}, "must hold stoi"),
        ({"stoi": {"ab": 0}}, "must hold stoi"),
        ({"stoi": {"a": 0, "b": 2}}, "must be 0 to 1, each once: got [0, 2]"),
        ({"stoi": {"a": 0, "b": 0}}, "must be 0 to 1, each once: got [0, 0]"),
        ({"stoi": {"a": True}}, "must hold stoi"),
        ({"stoi": {"a": 0}, "vocab_size": 2}, "contradicts itself: vocab_size are not those of stoi"),
        ({"stoi": {"a": 0}, "itos": {0: "b"}}, "contradicts itself: itos are not those of stoi"),
    ],
)
def test_a_broken_meta_is_refused(values, message, nanogpt, tmp_path):
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(values))
    with pytest.raises(CorruptError) as caught:
        read_nanogpt(nanogpt().save(tmp_path / "ckpt.pt"), None, None)
    assert message in str(caught.value)


def test_more_characters_than_rows_are_refused(nanogpt, meta, tmp_path):
    path = nanogpt(vocab_size=20).save(tmp_path / "ckpt.pt")
    with pytest.raises(ConfigError, match=r"has 29 symbols, and the model in .* knows 20"):
        read_nanogpt(path, meta(tmp_path / "meta.pkl"), None)


def test_two_vocabularies_are_one_too_many(nanogpt, meta, tokenizer_json, tmp_path):
    path = nanogpt().save(tmp_path / "ckpt.pt")
    with pytest.raises(ConfigError, match="not both"):
        read_nanogpt(path, meta(tmp_path / "meta.pkl"), tokenizer_json(tmp_path))
