"""Verifying a bundle: what holds of an intact one, and what is found of an altered one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gptblock.bundle.store import hash_file, read_tensors, write_tensors
from gptblock.errors import CorruptError, NotFoundError
from gptblock.runtime.session import Provider, open_session
from gptblock.runtime.verify import verify

CHECKS = [
    "logits at every length",
    "causality: earlier logits stay",
    "causality: later logits move",
    "cache: chunks of any split",
    "cache: rows of unlike lengths",
    "greedy text",
]


@pytest.fixture
def bundle(tiny_bundle, tmp_path) -> Path:
    """A copy that may be altered."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def run(path: Path):
    return verify(path, provider="cpu", threads=1)


def sign(bundle: Path, name: str) -> None:
    """Make the manifest agree with a file that was altered."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][name]["size"] = (bundle / name).stat().st_size
    manifest["files"][name]["sha256"] = hash_file(bundle / name)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def alter_golden(bundle: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    path = bundle / "golden.safetensors"
    tensors = read_tensors(path)
    write_tensors(path, tensors | {name: change(tensors[name])})
    sign(bundle, path.name)


def alter_graph(bundle: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    """The standard graph, and no other beside it, which would look for its weights where they were."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["files"]["model.cpu.onnx"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    (bundle / "model.cpu.onnx").unlink()
    graph = onnx.load(bundle / "model.onnx")
    change(graph)
    onnx.save(graph, bundle / "model.onnx")
    sign(bundle, "model.onnx")


def test_an_intact_bundle_holds(tiny_bundle):
    result = run(tiny_bundle)
    assert (result.path, result.provider.name) == (tiny_bundle, "cpu")
    assert (result.problems, result.failed) == ([], [])
    assert {name: [check.name for check in checks] for name, checks in result.proofs.items()} == {
        "model.onnx": CHECKS,
        "model.cpu.onnx": CHECKS,
    }
    assert result.unproved == [
        "model.pt: its hash holds; running it takes torch, and gptblock export proved it"
    ]


def test_a_run_folder_is_verified_by_its_bundle(tiny_bundle):
    assert run(tiny_bundle.parent).path == tiny_bundle


def test_a_lone_file_proves_what_it_can_and_names_the_rest(tiny_bundle, tmp_path):
    path = Path(shutil.copy(tiny_bundle / "model.onnx", tmp_path / "mine.onnx"))
    result = run(path)
    assert (result.path, result.provider.name) == (path, "cpu")
    assert [check.name for check in result.proofs["mine.onnx"]] == CHECKS[1:5]
    assert (result.problems, result.failed) == ([], [])
    hashes, golden = result.unproved
    assert hashes.startswith("the file's hash: ")
    assert golden.startswith("PyTorch's logits and greedy text: ")


def flip_a_byte(bundle: Path) -> None:
    data = bytearray((bundle / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / "model.onnx").write_bytes(data)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (flip_a_byte, "model.onnx: SHA-256 is "),
        (lambda bundle: (bundle / "model.pt").unlink(), "model.pt: missing"),
        (lambda bundle: (bundle / "golden.safetensors").unlink(), "golden.safetensors: missing"),
        (lambda bundle: (bundle / "notes.txt").write_text("mine"), "notes.txt: not in the manifest"),
        (lambda bundle: (bundle / "README.md").write_text("other"), "README.md: 5 bytes, and "),
    ],
)
def test_files_that_are_not_as_they_were_written_are_not_run(change, problem, bundle):
    change(bundle)
    result = run(bundle)
    assert [found[: len(problem)] for found in result.problems] == [problem]
    assert (result.provider, result.proofs) == (None, {})


@pytest.mark.parametrize(
    ("name", "change", "failed"),
    [
        ("logits", lambda logits: logits + np.float32(1e-3), [CHECKS[0], CHECKS[3], CHECKS[4]]),
        ("greedy_ids", lambda ids: (ids + 1) % 65, [CHECKS[5]]),
    ],
)
def test_other_golden_vectors_under_a_valid_hash_fail_the_proof(name, change, failed, bundle):
    alter_golden(bundle, name, change)
    result = run(bundle)
    assert result.problems == []
    graphs = ("model.onnx", "model.cpu.onnx")
    assert result.failed == [f"{graph}: {check}" for graph in graphs for check in failed]


@pytest.mark.parametrize(
    ("attribute", "value", "failed"),
    [
        ("scale", 0.5, [CHECKS[0], CHECKS[3], CHECKS[4]]),
        ("local_window_size", 4, [CHECKS[0], CHECKS[3], CHECKS[4]]),
    ],
)
def test_another_attention_under_a_valid_hash_fails_the_proof(attribute, value, failed, bundle):
    graph = onnx.load(bundle / "model.cpu.onnx", load_external_data=False)
    for node in graph.graph.node:
        if node.op_type == "GroupQueryAttention":
            others = [other for other in node.attribute if other.name != attribute]
            del node.attribute[:]
            node.attribute.extend([*others, onnx.helper.make_attribute(attribute, value)])
    onnx.save(graph, bundle / "model.cpu.onnx")
    sign(bundle, "model.cpu.onnx")
    result = run(bundle)
    assert result.problems == []
    assert {f"model.cpu.onnx: {name}" for name in failed} <= set(result.failed)
    assert not any(name.startswith("model.onnx") for name in result.failed)


def test_what_cuda_does_not_run_is_not_proved_there(tiny_bundle, monkeypatch):
    """The graph of fused attention is for the CPU; a CPU stands in for CUDA here."""

    def as_if_on_cuda(graph, **_):
        assert graph.name == "model.onnx"
        return replace(open_session(graph, provider="cpu", threads=1), provider=Provider("cuda", 0, ""))

    monkeypatch.setattr("gptblock.runtime.verify.open_session", as_if_on_cuda)
    monkeypatch.setattr("gptblock.runtime.verify.prove", lambda *_: [])
    result = verify(tiny_bundle)
    assert list(result.proofs) == ["model.onnx"]
    assert (
        "model.cpu.onnx: its hash holds; it is for the CPU, and --provider cpu proves it" in result.unproved
    )


def test_golden_vectors_of_another_model_are_refused(bundle):
    alter_golden(bundle, "input_ids", lambda ids: ids + 65)
    with pytest.raises(CorruptError, match="golden vectors"):
        run(bundle)


def test_a_bundle_without_golden_vectors_is_refused(bundle):
    (bundle / "golden.safetensors").unlink()
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["files"]["golden.safetensors"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(NotFoundError, match=r"golden\.safetensors"):
        run(bundle)


@pytest.mark.parametrize("value", [0.05, float("nan")])
def test_one_changed_weight_under_a_valid_hash_fails_the_proof(value, bundle):
    def change(graph):
        bias = next(tensor for tensor in graph.graph.initializer if tensor.name.endswith("lm_head.bias"))
        values = numpy_helper.to_array(bias).copy()
        values[3] += value
        bias.CopyFrom(numpy_helper.from_array(values, bias.name))

    alter_graph(bundle, change)
    result = run(bundle)
    assert result.problems == []
    assert {f"model.onnx: {name}" for name in (CHECKS[0], CHECKS[3], CHECKS[4])} <= set(result.failed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"dropout": 0.2', '"dropout": 0.1'),
        ('"block_size": 16', '"block_size": 15'),
        ('"vocab": "\\n !', '"vocab": "\\n!#'),
        ("fp32", "fp16"),
    ],
)
def test_metadata_that_are_not_the_manifests_are_a_problem_and_are_not_run(old, new, bundle):
    def change(graph):
        entries = [entry for entry in graph.metadata_props if old in entry.value]
        assert len(entries) == 1
        entries[0].value = entries[0].value.replace(old, new)

    alter_graph(bundle, change)
    result = run(bundle)
    assert len(result.problems) == 1
    assert result.problems[0].startswith("model.onnx: its configuration, tokenizer or precision is not")
    assert result.proofs == {}
