"""A bundle holds what was named and was proved, or is not written."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gptblock.runtime.model
from gptblock.bundle.manifest import Check
from gptblock.bundle.store import check_files, read_manifest, read_tensors
from gptblock.errors import ConfigError, ProofError
from gptblock.export import build
from gptblock.export.build import export_model
from gptblock.export.parity import make_golden
from gptblock.runtime.golden import Golden
from gptblock.runtime.model import load
from gptblock.runtime.session import Provider, open_session
from gptblock.runtime.verify import verify

EVERYTHING = ["README.md", "golden.safetensors", "manifest.json", "model.cpu.onnx", "model.onnx", "model.pt"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_bundle_holds_exactly_what_a_deployment_needs(tiny_bundle):
    assert names(tiny_bundle) == EVERYTHING
    assert check_files(tiny_bundle, read_manifest(tiny_bundle)) == []


def test_the_manifest_records_model_versions_and_proof(tiny_bundle, tiny_model, tiny_tokenizer):
    manifest = read_manifest(tiny_bundle)
    assert manifest.model == tiny_model.config
    assert manifest.tokenizer == tiny_tokenizer.to_dict()
    assert manifest.minimum_onnxruntime == "1.28"
    assert manifest.versions["torch"].startswith(torch.__version__)
    assert [len(manifest.files[name].checks) for name in ("model.onnx", "model.pt")] == [6, 4]
    assert all(check.ok for entry in manifest.files.values() for check in entry.checks)


def test_a_format_that_there_is_not_is_refused(tiny_model, tiny_tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"^formats must be of onnx, torchscript: got tflite$"):
        export_model(tiny_model, tiny_tokenizer, tmp_path / "bundle", ["onnx", "tflite"])
    assert not list(tmp_path.iterdir())


def test_a_precision_that_there_is_not_is_refused(tiny_model, tiny_tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"^precisions must be of fp32, fp16, int8, int4: got int3$"):
        export_model(tiny_model, tiny_tokenizer, tmp_path / "bundle", precisions=["int3"])
    with pytest.raises(ConfigError, match="below fp32"):
        export_model(tiny_model, tiny_tokenizer, tmp_path / "bundle", data="pydoc")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def lower_bundle(tiny_model, tiny_tokenizer, tmp_path_factory):
    """A bundle in every precision, measured on a text; and what was said of it."""
    folder = tmp_path_factory.mktemp("lower")
    text = folder / "text.txt"
    text.write_text("To be, or not to be: that is the question.\n" * 20, encoding="utf-8")
    notes: list[str] = []
    manifest = export_model(
        tiny_model,
        tiny_tokenizer,
        folder / "bundle",
        ["onnx"],
        ["int4", "fp16", "int8"],
        data=str(text),
        on_note=notes.append,
    )
    assert not notes
    return folder / "bundle", manifest


def test_every_precision_is_written_proved_and_its_cost_told(lower_bundle):
    folder, manifest = lower_bundle
    assert read_manifest(folder) == manifest
    graphs = {name: entry for name, entry in manifest.files.items() if name.endswith(".onnx")}
    assert {name: (entry.precision, len(entry.checks)) for name, entry in graphs.items()} == {
        "model.onnx": ("fp32", 6),
        "model.fp16.onnx": ("fp16", 6),
        "model.int8.onnx": ("int8", 8),
        "model.int4.onnx": ("int4", 8),
        "model.cpu.onnx": ("fp32", 6),
        "model.int8.cpu.onnx": ("int8", 6),
        "model.int4.cpu.onnx": ("int4", 6),
        "model.int8.batch.onnx": ("int8", 6),
    }
    sizes = [graphs[f"model.{each}onnx"].size for each in ("", "fp16.", "int8.", "int4.")]
    assert sizes == sorted(sizes, reverse=True)
    card = (folder / "README.md").read_text(encoding="utf-8")
    for name, entry in graphs.items():
        assert all(check.ok for check in entry.checks)
        assert (entry.cost is None) == (name == "model.onnx" or entry.weights is not None)
        if entry.cost:
            assert (entry.cost.text, entry.cost.tokens) == ("text.txt", 848)
            assert 0 < abs(entry.cost.loss - entry.cost.fp32_loss) < 0.05
            assert f"{name}: {entry.cost}." in card


def test_every_graph_is_verified_or_the_one_that_is_asked_for(lower_bundle):
    folder, _ = lower_bundle
    everything = verify(folder, provider="cpu", threads=1)
    assert sorted(everything.proofs) == [
        "model.cpu.onnx",
        "model.fp16.onnx",
        "model.int4.cpu.onnx",
        "model.int4.onnx",
        "model.int8.batch.onnx",
        "model.int8.cpu.onnx",
        "model.int8.onnx",
        "model.onnx",
    ]
    assert everything.failed + everything.problems + everything.unproved == []
    one = verify(folder, precision="int8", provider="cpu", threads=1)
    assert list(one.proofs) == ["model.int8.onnx", "model.int8.batch.onnx", "model.int8.cpu.onnx"]
    assert "model.onnx: its hash holds; only int8 was asked for" in one.unproved


def test_each_precision_is_loaded_by_name_and_none_below_fp32_unasked(lower_bundle, tiny_model):
    folder, _ = lower_bundle
    loaded = {each: load(folder, precision=each, provider="cpu") for each in ("auto", "fp16", "int8", "int4")}
    found = [model.decoder.metadata.precision for model in loaded.values()]
    assert found == ["fp32", "fp16", "int8", "int4"]
    ids = np.arange(16)[None]
    with torch.no_grad():
        exact = tiny_model(torch.from_numpy(ids)).numpy()
    off = [np.abs(model.logits(ids) - exact).max() / np.abs(exact).max() for model in loaded.values()]
    assert off == sorted(off)
    assert off[0] < 1e-5 < off[1] < 4e-3 < off[2] < 0.06 < off[3] < 0.4


def test_on_cuda_half_precision_is_the_default_where_it_is_there(lower_bundle, tiny_bundle, monkeypatch):
    def as_if_on_cuda(path, **_):
        return dataclasses.replace(open_session(path, provider="cpu"), provider=Provider("cuda", 0, ""))

    monkeypatch.setattr(gptblock.runtime.model, "open_session", as_if_on_cuda)
    assert load(lower_bundle[0]).decoder.metadata.precision == "fp16"
    assert load(lower_bundle[0], precision="fp32").decoder.metadata.precision == "fp32"
    assert load(tiny_bundle).decoder.metadata.precision == "fp32"
    assert load(tiny_bundle / "model.onnx").decoder.metadata.precision == "fp32"


@pytest.mark.usefixtures("quick_parts")
def test_without_a_text_no_cost_is_made_up(tiny_model, tiny_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_prove_quantized", lambda *_: [Check("logits", 1, 0.0, 1.0)])
    notes: list[str] = []
    manifest = export_model(tiny_model, tiny_tokenizer, tmp_path / "b", [], ["int8"], on_note=notes.append)
    assert manifest.files["model.int8.onnx"].cost is None
    assert notes == [
        "what the lower precision costs was not measured: the model's record names no text; --data names one"
    ]


@pytest.mark.usefixtures("quick_parts")
def test_a_model_that_does_not_stand_a_precision_is_told_so(
    tiny_model, tiny_tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr(build, "_prove_quantized", lambda *_: [Check("logits", 1, 2.0, 1.0)])
    with pytest.raises(ProofError, match=r"It does not stand int8 .* export it without --precision int8$"):
        export_model(tiny_model, tiny_tokenizer, tmp_path / "b", [], ["int8"])
    assert not list(tmp_path.iterdir())


def test_golden_vectors_are_pytorchs(tiny_bundle, tiny_model):
    golden = Golden.from_tensors(read_tensors(tiny_bundle / "golden.safetensors"), tiny_model.config)
    np.testing.assert_array_equal(golden.logits, tiny_model(torch.from_numpy(golden.input_ids)).detach())
    assert golden.logits.shape == (3, 16, 65)
    assert len(golden.greedy_prompt) + len(golden.greedy_ids) > 16


@pytest.mark.usefixtures("quick_parts")
def test_an_export_replaces_the_whole_bundle(tiny_model, tiny_tokenizer, tmp_path):
    folder = tmp_path / "bundle"
    export_model(tiny_model, tiny_tokenizer, folder)
    assert names(folder) == EVERYTHING
    export_model(tiny_model, tiny_tokenizer, folder, ["onnx"])
    assert names(folder) == [name for name in EVERYTHING if name != "model.pt"]
    assert names(tmp_path) == ["bundle"]


@pytest.mark.usefixtures("quick_parts")
def test_a_failed_proof_writes_nothing(tiny_model, tiny_tokenizer, tmp_path, monkeypatch):
    folder = tmp_path / "bundle"
    export_model(tiny_model, tiny_tokenizer, folder, ["onnx"])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    seen: list[tuple[str, bool]] = []
    failing = [Check("logits at every length", 32, float("nan"), 1e-5)]
    monkeypatch.setattr(build, "prove_onnx", lambda *_, **__: failing)
    with pytest.raises(
        ProofError, match=r"model\.onnx does not reproduce the model \(logits at every length\)"
    ) as caught:
        export_model(
            tiny_model,
            tiny_tokenizer,
            folder,
            on_proof=lambda name, checks: seen.append((name, all(check.ok for check in checks))),
        )
    assert caught.value.exit_code == 5
    assert seen == [("model.onnx", False)]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert names(tmp_path) == ["bundle"]


@pytest.fixture
def quick_parts(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies in place of the exporters, whose own tests are elsewhere: here it is about the folder."""
    monkeypatch.setattr(
        build, "export_onnx", lambda _model, path, _metadata: shutil.copy(tiny_bundle / "model.onnx", path)
    )
    monkeypatch.setattr(build, "quantize", lambda fp32, path, _metadata: shutil.copy(fp32, path))
    monkeypatch.setattr(
        build, "export_torchscript", lambda _model, path: shutil.copy(tiny_bundle / "model.pt", path)
    )


# What strangers do with a bundle: a process that cannot import gptblock, in the bundle's folder.

BLOCKED = "import sys\nsys.modules['gptblock'] = None\n"


def run_alone(code: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCKED + code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_model_cards_snippet_runs_without_gptblock(tiny_bundle, tiny_model, tiny_tokenizer):
    card = (tiny_bundle / "README.md").read_text(encoding="utf-8")
    snippet = card.split("```python\n")[1].split("```")[0]
    assert len(snippet.splitlines()) <= 15
    from gptblock.config import SamplingConfig

    reference = tiny_model.generate(
        torch.zeros(1, 1, dtype=torch.int64), 100, SamplingConfig(temperature=0.0), seed=0
    )
    assert run_alone(snippet, tiny_bundle) == tiny_tokenizer.decode(reference[0, 1:].numpy()) + "\n"


def test_the_torchscript_file_runs_without_gptblock(tiny_bundle, tiny_model):
    code = (
        "import json, torch\n"
        "model = torch.jit.load('model.pt')\n"
        "ids = torch.arange(16)[None]\n"
        "print(json.dumps([model(ids)[0, -1].tolist(), model.generate(ids, 20, 0.0, 0)[0].tolist()]))"
    )
    logits, ids = json.loads(run_alone(code, tiny_bundle))
    from gptblock.config import SamplingConfig

    start = torch.arange(16)[None]
    with torch.no_grad():
        np.testing.assert_allclose(logits, tiny_model(start)[0, -1].numpy(), atol=1e-6)
    assert ids == tiny_model.generate(start, 20, SamplingConfig(temperature=0.0), seed=0)[0].tolist()


def test_the_model_card_states_the_model_and_its_proof(tiny_bundle):
    card = (tiny_bundle / "README.md").read_text(encoding="utf-8")
    assert "2 layers, 4 heads, width 32, context 16 tokens, vocabulary 65" in card
    for check in read_manifest(tiny_bundle).files["model.onnx"].checks:
        assert f"| {check.name} | {check.cases} |" in card


def test_the_golden_text_is_long_enough_to_slide(make_model):
    golden = make_golden(make_model(n_layer=1, block_size=1))
    assert (len(golden.greedy_prompt), len(golden.greedy_ids)) == (1, 24)


@pytest.mark.parametrize(("effort", "is_large"), [(1.0, True), (5e11, False)])
def test_a_large_models_weights_are_let_go_before_the_proof(
    effort, is_large, make_model, tiny_tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr("gptblock.runtime.golden._EFFORT", effort)
    model = make_model(n_layer=1)
    manifest = export_model(model, tiny_tokenizer, tmp_path / "bundle", consume=True)
    assert all((parameter.numel() == 0) is is_large for parameter in model.parameters())
    for name in ("model.onnx", "model.pt"):
        checks = manifest.files[name].checks
        assert [check.cases for check in checks][:3] == ([6, 6, 6] if is_large else [32, 16, 16])
        assert all(check.ok for check in checks)
