"""GPT-2 as transformers computes and saves it, against what is read of its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gptblock.config import SamplingConfig
from gptblock.convert import convert
from gptblock.convert.gpt2 import read_gpt2
from gptblock.errors import ConfigError, CorruptError, NotFoundError
from gptblock.training import load_model

SYMBOLS = 60
SIZES = {
    "two layers": {},
    "odd heads": {"n_embd": 21, "n_head": 3, "n_positions": 9},
    "one head": {"n_head": 1, "n_layer": 1},
    "n_inner": {"n_inner": 50},
    "square mlp": {"n_inner": 32},
    "odd n_inner": {"n_embd": 28, "n_inner": 37},
    "epsilon": {"layer_norm_epsilon": 0.3},
    "untied": {"tie_word_embeddings": False},
    "inverse layer scaling": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    "no scaling": {"scale_attn_weights": False},
    "gelu": {"activation_function": "gelu"},
    "gelu_pytorch_tanh": {"activation_function": "gelu_pytorch_tanh"},
    "relu": {"activation_function": "relu"},
    "padded": {"vocab_size": 64},
}


def gpt2(**changes: object):
    values = {"vocab_size": SYMBOLS, "n_positions": 12, "n_embd": 32, "n_head": 4, "n_layer": 2}
    config = transformers.GPT2Config(
        **values | {"initializer_range": 0.2} | changes, attn_implementation="eager"
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zero in a fresh model, which would hide a bias that goes astray
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def folder(tmp_path: Path, tokenizer_json) -> Path:
    tokenizer_json(tmp_path, SYMBOLS)
    return tmp_path


def alter(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    values |= changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value != "absent"}))


@pytest.mark.parametrize("changes", SIZES.values(), ids=SIZES)
def test_logits_are_those_of_transformers(changes, folder, difference, record_property):
    oracle = gpt2(**changes)
    oracle.save_pretrained(folder)
    convert(folder, "gpt2", folder / "run")
    run = load_model(folder / "run")
    worst = difference(run.model, lambda ids: oracle(ids).logits, SYMBOLS)
    record_property("worst", worst)
    assert worst < 1e-5
    assert run.tokenizer.vocab_size == run.model.config.vocab_size == SYMBOLS
    assert run.model.config.ff_size == (changes.get("n_inner") or 4 * oracle.config.n_embd)
    assert run.model.config.tie_weights is oracle.config.tie_word_embeddings


def test_greedy_tokens_are_those_of_transformers(folder):
    oracle = gpt2(initializer_range=0.5)
    oracle.save_pretrained(folder)
    convert(folder, "gpt2", folder / "run")
    model = load_model(folder / "run").model
    ids = torch.tensor([[5, 9]])
    ours = model.generate(ids, 10, SamplingConfig(temperature=0.0), seed=0)
    theirs = oracle.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours.tolist() == theirs.tolist()


def as_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without_prefix(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): value for name, value in state.items()},
        folder / "model.safetensors",
    )


def with_masks_and_head(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    for layer in range(2):
        state[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 12, 12).tril().bool()
        state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    state["lm_head.weight"] = state["transformer.wte.weight"].clone()
    save_file(state, folder / "model.safetensors")


def untied_by_name_alone(folder: Path) -> None:
    with_masks_and_head(folder)
    alter(folder / "config.json", tie_word_embeddings=False)


def in_parts(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    places = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(names)}
    for part in set(places.values()):
        save_file({name: state[name] for name in names if places[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "model.safetensors").unlink()


def vocab_and_merges(folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer.json").unlink()


def silent_config(folder: Path) -> None:
    names = (
        "activation_function",
        "layer_norm_epsilon",
        "scale_attn_weights",
        "n_inner",
        "tie_word_embeddings",
    )
    alter(folder / "config.json", **dict.fromkeys(names, "absent"))


@pytest.mark.parametrize(
    "change",
    [
        as_bin,
        without_prefix,
        with_masks_and_head,
        untied_by_name_alone,
        in_parts,
        vocab_and_merges,
        silent_config,
    ],
)
def test_other_ways_to_save_the_same(change, folder):
    oracle = gpt2()
    oracle.save_pretrained(folder)
    before = read_gpt2(folder, None)
    change(folder)
    reading = read_gpt2(folder, None)
    assert reading.config == before.config
    assert reading.weights.keys() == before.weights.keys()
    for name, tensor in before.weights.items():
        assert torch.equal(reading.weights[name], tensor), name
    assert reading.tokenizer.vocab_size == before.tokenizer.vocab_size == SYMBOLS


def test_a_head_that_differs_is_a_head_of_its_own(folder, difference):
    oracle = gpt2(tie_word_embeddings=False)
    oracle.save_pretrained(folder)
    alter(folder / "config.json", tie_word_embeddings=True)
    convert(folder, "gpt2", folder / "run")
    assert difference(load_model(folder / "run").model, lambda ids: oracle(ids).logits, SYMBOLS) < 1e-3


def test_padding_is_left_out_and_reported(folder):
    gpt2(vocab_size=64).save_pretrained(folder)
    conversion = convert(folder, "gpt2", folder / "run")
    assert conversion.notes == ("vocabulary: of 64 rows 4 are padding, and left out",)
    assert conversion.config.vocab_size == SYMBOLS


def test_every_missing_and_every_unknown_tensor_is_listed(folder):
    gpt2().save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    del state["transformer.h.1.ln_2.weight"], state["transformer.wpe.weight"]
    state |= {"transformer.h.0.adapter": torch.ones(2), "transformer.h.2.ln_1.bias": torch.ones(2)}
    state["transformer.h.0.mlp.c_fc.weight"] = state["transformer.h.0.mlp.c_fc.weight"].T.contiguous()
    state["transformer.ln_f.bias"][3] = torch.nan
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CorruptError) as caught:
        read_gpt2(folder, None)
    message = str(caught.value)
    for part in (
        "missing: wpe.weight, h.1.ln_2.weight;",
        "unknown: h.0.adapter, h.2.ln_1.bias;",
        "h.0.mlp.c_fc.weight is (128, 32) and should be (32, 128)",
        "ln_f.bias is not finite",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'gpt2': got 'llama'"),
        ({"model_type": "absent"}, "model_type 'gpt2': got None"),
        ({"activation_function": "silu"}, "gelu_new, gelu_pytorch_tanh, gelu, relu: got 'silu'"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"n_embd": "32"}, "an integer >= 1 as n_embd: got '32'"),
        ({"n_inner": 0}, "an integer >= 1 as n_inner: got 0"),
        ({"n_head": 5}, "n_embd must be divisible by n_head"),
        ({"vocab_size": 61}, "wte.weight is (60, 32) and should be (61, 32)"),
        ({"n_layer": 3}, "missing: h.2.ln_1.weight"),
    ],
)
def test_other_models_are_refused(changes, message, folder):
    gpt2().save_pretrained(folder)
    alter(folder / "config.json", **changes)
    with pytest.raises(CorruptError) as caught:
        read_gpt2(folder, None)
    assert message in str(caught.value)


def test_an_untied_head_that_is_not_there_is_missing(folder):
    gpt2().save_pretrained(folder)
    alter(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(CorruptError, match=r"missing: lm_head\.weight"):
        read_gpt2(folder, None)


def test_a_tokenizer_of_more_symbols_is_refused(folder, tokenizer_json):
    gpt2().save_pretrained(folder)
    tokenizer_json(folder, SYMBOLS + 1)
    with pytest.raises(ConfigError, match=r"has 61 symbols, and the model in .* knows 60"):
        read_gpt2(folder, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "--from gpt2 takes a folder"),
        ("model.safetensors", "neither model.safetensors nor pytorch_model.bin"),
        ("tokenizer.json", "give --tokenizer"),
    ],
)
def test_what_is_not_there_is_named(name, message, folder):
    gpt2().save_pretrained(folder)
    (folder / name).unlink()
    with pytest.raises(NotFoundError, match=message):
        read_gpt2(folder, None)


def test_parts_stay_in_their_folder(folder):
    gpt2().save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"wte.weight": "../x.safetensors"}}')
    with pytest.raises(CorruptError, match=r"files of its own folder: got \.\./x\.safetensors"):
        read_gpt2(folder, None)
