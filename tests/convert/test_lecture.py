"""Checkpoints of the lecture's model, as the present version computes them and as early ones did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gptblock.convert import convert
from gptblock.convert.lecture import read_lecture
from gptblock.errors import ConfigError, CorpusError, CorruptError
from gptblock.training import load_model

VOCAB = "\n !abcdefghijklmnopqrstuvwxyz"
SIZES = {
    "four heads": {},
    "one head": {"n_head": 1},
    "odd heads": {"n_embd": 21, "n_head": 3, "block_size": 9, "n_layer": 3},
    "head size 1": {"n_embd": 8, "n_head": 8, "n_layer": 1},
}


@pytest.mark.parametrize("scale", ["head_size", "n_embd"])
@pytest.mark.parametrize("changes", SIZES.values(), ids=SIZES)
def test_logits_are_those_of_the_lecture(
    changes, scale, lecture, vocab_file, difference, record_property, tmp_path
):
    oracle = lecture(scale, **changes)
    for name, parameter in oracle.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            parameter.data *= 3  # so that the scale is seen
    torch.save(oracle.state_dict(), tmp_path / "model.pt")
    convert(tmp_path / "model.pt", "lecture", tmp_path / "run", vocab=vocab_file, scale=scale)
    run = load_model(tmp_path / "run")
    worst = difference(run.model, lambda ids: oracle(ids)[0], len(VOCAB))
    record_property("worst", worst)
    assert worst < 1e-5
    assert run.tokenizer.to_dict() == {"type": "char", "vocab": VOCAB}


def test_the_wrong_scale_is_another_model(lecture, vocab_file, tmp_path):
    oracle = lecture("n_embd")
    torch.save(oracle.state_dict(), tmp_path / "model.pt")
    convert(tmp_path / "model.pt", "lecture", tmp_path / "run", vocab=vocab_file, scale="head_size")
    ids = torch.randint(len(VOCAB), (4, 16))
    assert (load_model(tmp_path / "run").model(ids) - oracle(ids)[0]).abs().max() > 1e-3


def test_one_head_needs_no_scale(lecture, vocab_file, tmp_path):
    torch.save(lecture(n_head=1).state_dict(), tmp_path / "model.pt")
    convert(tmp_path / "model.pt", "lecture", tmp_path / "run", vocab=vocab_file)
    assert load_model(tmp_path / "run").model.config.n_head == 1


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict", "model_state_dict", "safetensors"])
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module."])
@pytest.mark.parametrize("has_masks", [True, False])
def test_ways_to_save_the_same(wrapper, prefix, has_masks, lecture, vocab_file, tmp_path):
    oracle = lecture()
    torch.save(oracle.state_dict(), tmp_path / "plain.pt")
    expected = read_lecture(tmp_path / "plain.pt", vocab_file)
    state = {prefix + k: v for k, v in oracle.state_dict().items() if has_masks or not k.endswith("tril")}
    path = tmp_path / "other.safetensors"
    if wrapper == "safetensors":
        save_file(state, path)
    else:
        path = tmp_path / "other.pt"
        torch.save({wrapper: state, "step": 3} if wrapper else state, path)
    reading = read_lecture(path, vocab_file)
    assert reading.config == expected.config
    assert reading.weights.keys() == expected.weights.keys()
    assert all(torch.equal(reading.weights[name], tensor) for name, tensor in expected.weights.items())


def test_half_precision_becomes_single(lecture, vocab_file, tmp_path):
    torch.save(lecture().half().state_dict(), tmp_path / "model.pt")
    weights = read_lecture(tmp_path / "model.pt", vocab_file).weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_every_missing_and_every_unknown_tensor_is_listed(lecture, vocab_file, tmp_path):
    state = lecture().state_dict()
    del state["blocks.0.sa.heads.2.key.weight"], state["lm_head.bias"]
    state |= {"blocks.1.sa.heads.0.key.bias": torch.ones(8), "extra": torch.ones(2)}
    state["ln_f.weight"] = torch.ones(31)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(CorruptError) as caught:
        read_lecture(tmp_path / "model.pt", vocab_file)
    message = str(caught.value)
    assert "missing: blocks.0.sa.heads.2.key.weight, lm_head.bias;" in message
    assert "unknown: blocks.1.sa.heads.0.key.bias, extra;" in message
    assert "ln_f.weight is (31,) and should be (32,)" in message


def test_another_programs_file_is_refused(nanogpt, vocab_file, tmp_path):
    path = nanogpt().save(tmp_path / "ckpt.pt")
    with pytest.raises(CorruptError, match=r"no checkpoint of the lecture's .* give another --from"):
        read_lecture(path, vocab_file)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, ConfigError, "give it by --vocab FILE"),
        (VOCAB[:-1], ConfigError, "has 28 different characters, and the checkpoint's vocabulary 29"),
        ("\ufeff" + VOCAB, ConfigError, "has 30 different characters, and the checkpoint's vocabulary 29"),
        (b"caf\xe9", CorpusError, "cannot be read as UTF-8"),
        (Path("nowhere"), CorpusError, "cannot be read"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(text, error, message, lecture, tmp_path):
    torch.save(lecture().state_dict(), tmp_path / "model.pt")
    vocab = tmp_path / "vocab.txt" if text is not None else None
    if isinstance(text, str):
        vocab.write_text(text, encoding="utf-8")
    elif isinstance(text, bytes):
        vocab.write_bytes(text)
    with pytest.raises(error) as caught:
        read_lecture(tmp_path / "model.pt", vocab)
    assert message in str(caught.value)


def test_the_vocabulary_is_read_as_the_lecture_reads_it(lecture, tmp_path):
    torch.save(lecture().state_dict(), tmp_path / "model.pt")
    (tmp_path / "vocab.txt").write_bytes(VOCAB.replace("\n", "\r\n").encode())
    assert read_lecture(tmp_path / "model.pt", tmp_path / "vocab.txt").tokenizer.vocab == VOCAB
