"""What a benchmark covers: defaults that fit, combinations in turn, and what is refused."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from gptblock.bundle.manifest import Manifest
from gptblock.errors import ConfigError, CorruptError, NotFoundError
from gptblock.runtime import bench as module
from gptblock.runtime import speed
from gptblock.runtime.bench import bench
from gptblock.runtime.fresh import Footprint
from gptblock.runtime.speed import Lengths, Spread, Stopwatch


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No pauses and no processes: those have tests of their own."""
    monkeypatch.setattr(speed, "_SETTLE", 0)
    monkeypatch.setattr(speed, "read_bandwidth", lambda ruler, threads: 1e9)  # noqa: ARG005
    monkeypatch.setattr(
        module,
        "footprint",
        lambda path, graph, precision, provider, threads, device_id: Footprint(  # noqa: ARG005
            precision, graph.name, 1, threads, Spread(1, 1, 1), None, None
        ),
    )


@pytest.fixture
def in_fp16_too(tiny_bundle, tmp_path):
    """A bundle that lists a second graph, which does not open."""
    folder = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (folder / "model.fp16.onnx").write_bytes(b"not a graph")
    manifest = Manifest.from_json((folder / "manifest.json").read_text())
    entry = replace(manifest.files["model.onnx"], size=11, precision="fp16", checks=())
    listed = replace(manifest, files=manifest.files | {"model.fp16.onnx": entry})
    (folder / "manifest.json").write_text(listed.to_json())
    return folder


def test_every_combination_in_turn(tiny_bundle, monkeypatch):
    turns = []
    measure = Stopwatch.measure

    def watched(self, rng, ruler):
        assert ruler.nbytes >= self.step_bytes // 4 * 4
        turns.append((self.threads, self.batch))
        measure(self, rng, ruler)

    monkeypatch.setattr(Stopwatch, "measure", watched)
    news = []
    result = bench(
        tiny_bundle, provider="cpu", threads=[2, 1], batches=[3, 1, 3], rounds=2, on_progress=news.append
    )
    combinations = [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert turns == 2 * combinations
    assert [(each.threads, each.batch) for each in result.speeds] == combinations
    assert {each.precision for each in result.speeds} == {"fp32"}
    assert [(each.precision, each.file, each.threads) for each in result.footprints] == [
        ("fp32", "model.onnx", 2)
    ]
    assert news[:2] == ["round 1 of 2: 4 configurations in turn", "round 2 of 2: 4 configurations in turn"]
    assert len(news) == 3
    # block_size is 16
    assert (result.prompt_tokens, result.max_new_tokens, result.prefill_tokens) == (8, 8, 16)
    assert {each.decode.count for each in result.speeds} == {2 * 7}
    assert (result.path, result.provider.name, result.rounds) == (tiny_bundle, "cpu", 2)
    assert set(result.versions) == {"gptblock", "python", "numpy", "onnxruntime"}
    assert (result.load_average is None) is not hasattr(os, "getloadavg")


def test_defaults(tiny_bundle, monkeypatch):
    monkeypatch.setattr(module, "allowed_cpus", lambda: 3)
    monkeypatch.setattr(Stopwatch, "measure", lambda self, rng, ruler: None)  # noqa: ARG005
    monkeypatch.setattr(Stopwatch, "speed", lambda self: (self.threads, self.batch))
    assert bench(tiny_bundle, provider="cpu").speeds == [(1, 1), (1, 8), (3, 1), (3, 8)]


@pytest.mark.parametrize(
    ("block_size", "given", "expected"),
    [
        (1024, (None, None, None), (16, 64, 256)),
        (128, (None, None, None), (16, 64, 128)),
        (128, (100, None, 7), (100, 28, 7)),
        (128, (64, 64, 128), (64, 64, 128)),
        (32, (None, None, None), (16, 16, 32)),
        (3, (None, None, None), (1, 2, 3)),
    ],
)
def test_lengths_fit(block_size, given, expected):
    assert module._lengths(block_size, *given) == Lengths(*expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": [1, 0]}, "batch must be >= 1: got 0"),
        ({"rounds": 0}, "rounds must be >= 1: got 0"),
        ({"threads": [0]}, r"threads must be in 1\.\.1024: got 0"),
        ({"prompt_tokens": 0}, "prompt_tokens must be >= 1: got 0"),
        ({"max_new_tokens": 1}, "max_new_tokens must be >= 2: got 1"),
        ({"prefill_tokens": 0}, "prefill_tokens must be >= 1: got 0"),
        (
            {"max_new_tokens": 9},
            r"prompt_tokens \+ max_new_tokens must be at most block_size, 16: .*; got 8 \+ 9",
        ),
        ({"prefill_tokens": 17}, "prefill_tokens must be at most block_size, 16: .*; got 17"),
    ],
)
@pytest.mark.parametrize("name", ["", "model.onnx"])
def test_numbers_out_of_range(tiny_bundle, name, options, message):
    with pytest.raises(ConfigError, match=message):
        bench(tiny_bundle / name, provider="cpu", **{"threads": [1], **options})


@pytest.mark.parametrize("name", ["", "model.onnx"])
def test_a_precision_that_is_not_there(tiny_bundle, name):
    with pytest.raises(NotFoundError, match="has no int8 graph; it has fp32: give one of these"):
        bench(tiny_bundle / name, precisions=["fp32", "int8"])


def test_a_lone_file(tiny_bundle):
    result = bench(tiny_bundle / "model.onnx", provider="cpu", threads=[1], batches=[1], rounds=1)
    assert (result.path, len(result.speeds)) == (tiny_bundle / "model.onnx", 1)


def test_a_precision_that_does_not_open_is_named_unless_asked_for(in_fp16_too):
    options = {"provider": "cpu", "threads": [1], "batches": [1], "rounds": 1}
    result = bench(in_fp16_too, **options)
    assert [each.precision for each in result.speeds] == ["fp32"]
    assert [each.precision for each in result.footprints] == ["fp32"]
    assert len(result.unmeasured) == 1
    assert result.unmeasured[0].startswith("fp16: ")
    assert "is no ONNX file" in result.unmeasured[0]
    with pytest.raises(CorruptError, match="is no ONNX file"):
        bench(in_fp16_too, precisions=["fp32", "fp16"], **options)
