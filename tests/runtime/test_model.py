"""A loaded model: where from, logits, and the forms of generate and stream."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import gptblock
from gptblock.config import ModelConfig
from gptblock.errors import ConfigError, InputError, MissingExtraError, NotFoundError
from gptblock.runtime.completion import Completion
from gptblock.runtime.model import Model, load
from gptblock.runtime.session import open_session
from gptblock.runtime.verify import verify
from gptblock.text.subword import SubwordTokenizer

OPTIONS = {"max_new_tokens": 20, "seed": 3}


@pytest.mark.parametrize("as_type", [str, lambda path: path])
@pytest.mark.parametrize("kind", ["bundle", "run folder", "lone file"])
def test_loads_a_bundle_a_run_folder_or_a_lone_file(kind, as_type, tiny, tiny_bundle, tmp_path):
    lone = shutil.copy(tiny_bundle / "model.onnx", tmp_path / "mine.onnx")
    path = {"bundle": tiny_bundle, "run folder": tiny_bundle.parent, "lone file": lone}[kind]
    model = load(as_type(path), provider="cpu", threads=1)
    assert model.config == ModelConfig(
        vocab_size=65, block_size=16, n_layer=2, n_head=4, n_embd=32, dropout=0.2, init="torch"
    )
    assert model.provider.name == "cpu"
    assert model.generate("A", **OPTIONS).text == tiny.generate("A", **OPTIONS).text


def test_the_default_is_the_run_of_the_working_folder(tiny, tiny_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bundle, "artifacts/model/bundle")
    assert load(provider="cpu", threads=1).config == tiny.config


def test_a_precision_that_is_not_there(tiny_bundle):
    with pytest.raises(NotFoundError, match="has no int8 graph; it has fp32"):
        load(tiny_bundle, precision="int8")


def test_the_package_offers_it():
    assert gptblock.load is load
    assert (gptblock.Model, gptblock.Completion) == (Model, Completion)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        gptblock.lode  # noqa: B018


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_logits_of_integers_of_any_kind(dtype, tiny, tiny_model):
    ids = np.random.default_rng(0).integers(0, 65, size=(2, 16))
    logits = tiny.logits(ids.astype(dtype))
    assert (logits.shape, logits.dtype) == ((2, 16, 65), np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(logits, tiny_model(torch.from_numpy(ids)).numpy(), atol=1e-5, rtol=0)
    np.testing.assert_array_equal(tiny.logits(ids.tolist()), logits)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2], r"must be integers \(B, T\): got int64 of shape \(2,\)"),
        ([[[1]]], r"must be integers \(B, T\): got int64 of shape \(1, 1, 1\)"),
        ([[1.0]], r"must be integers \(B, T\): got float64 of shape \(1, 1\)"),
        ([[True]], r"must be integers \(B, T\): got bool of shape \(1, 1\)"),
        ([["a"]], r"must be integers \(B, T\): got <U1 of shape \(1, 1\)"),
        ([[1, 2], [3]], r"must be integers \(B, T\): got rows of unlike lengths"),
        (np.zeros((1, 17), int), "1 to 16 tokens .* got 17"),
        (np.zeros((1, 0), int), "1 to 16 tokens .* got 0"),
        ([[65]], "from 0 to 64 .* got 65 to 65"),
        (np.array([[2**64 - 1]], np.uint64), "from 0 to 64"),
    ],
)
def test_ids_that_are_refused(ids, message, tiny):
    with pytest.raises(InputError, match=message) as raised:
        tiny.logits(ids)
    assert "\n" not in str(raised.value)


def test_a_string_gives_a_completion_and_a_list_gives_lists(tiny):
    one = tiny.generate("A", **OPTIONS)
    assert isinstance(one, Completion)
    many = tiny.generate(["A", "ROMEO:"], num_samples=2, **OPTIONS)
    assert [[done.prompt for done in samples] for samples in many] == [["A", "A"], ["ROMEO:", "ROMEO:"]]
    assert many[0][0].text == one.text
    assert tiny.generate(("A",), **OPTIONS)[0][0].text == one.text
    assert tiny.generate([], **OPTIONS) == []
    assert tiny.generate(**OPTIONS).prompt == ""


def test_several_samples_of_a_string_are_refused(tiny):
    with pytest.raises(InputError, match=r"pass \['A'\] to get a list of samples"):
        tiny.generate("A", num_samples=2)
    with pytest.raises(InputError, match="a stream has one sample: got num_samples = 2"):
        tiny.stream("A", num_samples=2)


def test_a_stream_ends_in_its_completion(tiny):
    stream = tiny.stream("A", **OPTIONS)
    first = next(stream)
    done = stream.completions()[0]  # the rest is run
    assert done.text == tiny.generate("A", **OPTIONS).text
    assert done.text.startswith(first)
    assert list(stream) == []


@pytest.mark.parametrize("prompt", [None, 5, b"Be", ["Be", 3]])
def test_a_prompt_that_is_no_text_is_refused(tiny, prompt):
    with pytest.raises(InputError, match=r"prompt must be a str( or a list of them)?: got "):
        tiny.generate(prompt)


def test_numpys_scalars_are_numbers(tiny):
    options = {
        "max_new_tokens": np.int64(3),
        "seed": np.int64(1),
        "top_k": np.int64(5),
        "temperature": np.float32(0.5),
    }
    plain = {"max_new_tokens": 3, "seed": 1, "top_k": 5, "temperature": 0.5}
    assert tiny.generate("A", **options).ids == tiny.generate("A", **plain).ids


def test_the_tokenizer_is_built_once(other_bundles, monkeypatch):
    built = []
    make = SubwordTokenizer.__init__
    monkeypatch.setattr(
        SubwordTokenizer, "__init__", lambda self, values: (built.append(self), make(self, values))[1]
    )
    model = load(other_bundles["bpe"], provider="cpu", threads=1)
    assert built == [model.tokenizer]


def test_a_subword_model_without_its_library(other_bundles, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"needs tokenizers, .*: pip install 'gptblock\[bpe\]'$"):
        load(other_bundles["bpe"], provider="cpu", threads=1)
    assert load(other_bundles["byte"], provider="cpu", threads=1).config.vocab_size == 256


def test_characters_need_no_library(tiny_bundle):
    program = (
        "import sys, gptblock; model = gptblock.load(sys.argv[1], provider='cpu', threads=1);"
        "assert len(model.generate('A', max_new_tokens=3).text) == 3;"
        "print({'tokenizers', 'torch'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(tiny_bundle)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_device_and_its_rounding_reach_the_session(tiny_bundle, monkeypatch):
    asked = []

    def opened(path, **options):
        asked.append(options)
        return open_session(path, provider="cpu")

    monkeypatch.setattr("gptblock.runtime.model.open_session", opened)
    of_cuda = {"device_id": 1, "use_tf32": True, "use_graphs": True}
    load(tiny_bundle, provider="cuda", threads=1, **of_cuda)
    beside = {"cpu_graph": tiny_bundle / "model.cpu.onnx", "batch_graph": None}
    assert asked == [beside | {"provider": "cuda", "threads": 1} | of_cuda]


def test_the_cpu_runs_the_fused_graph_of_a_bundle_and_any_file_that_is_named(tiny_bundle):
    def is_fused(path):
        return load(path, provider="cpu", threads=1).decoder.is_fused

    assert is_fused(tiny_bundle)
    assert is_fused(tiny_bundle / "model.cpu.onnx")
    assert not is_fused(tiny_bundle / "model.onnx")


def test_a_precision_that_there_is_not_at_all(tiny_bundle):
    with pytest.raises(ConfigError, match=r"one of auto, fp32, fp16, int8, int4: got 'int9'$"):
        load(tiny_bundle, precision="int9")


def test_a_lone_file_is_not_taken_for_another_precision(tiny_bundle):
    path = tiny_bundle / "model.onnx"
    for wanted in ("auto", "fp32"):
        load(path, precision=wanted, provider="cpu", threads=1)
    for attempt in (load, verify):
        with pytest.raises(
            NotFoundError,
            match=r"model\.onnx has no int8 graph; it has fp32: give --precision fp32, or none$",
        ):
            attempt(path, precision="int8", provider="cpu", threads=1)


def test_a_model_shows_what_it_is(tiny):
    assert repr(tiny) == "<gptblock model: n_layer=2, n_head=4, n_embd=32, fp32 on cpu (asked for)>"
