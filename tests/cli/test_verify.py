"""`gptblock verify`: the table, the JSON and the exit codes, of bundles that are intact and that are not."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from gptblock.bundle.store import hash_file, read_tensors, write_tensors
from gptblock.cli.app import app
from gptblock.runtime.session import Provider

HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
CHECKS = [
    "logits at every length",
    "causality: earlier logits stay",
    "causality: later logits move",
    "cache: chunks of any split",
    "cache: rows of unlike lengths",
    "greedy text",
]


def call(*arguments: str | Path):
    return CliRunner().invoke(app, ["verify", "--provider", "cpu", "--threads", "1", *map(str, arguments)])


def rows(output: str) -> dict[str, str]:
    """The table: what holds, what fails."""
    verdicts = {}
    for check in CHECKS:
        for line in output.splitlines():
            if line.strip().startswith(check + "  "):
                verdicts[check] = line.split()[-1]
    return verdicts


@pytest.fixture
def bundle(tiny_bundle, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def sign(bundle: Path, name: str) -> None:
    """Make the manifest agree with a file that was altered."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][name]["size"] = (bundle / name).stat().st_size
    manifest["files"][name]["sha256"] = hash_file(bundle / name)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def flip_a_byte(bundle: Path) -> None:
    data = bytearray((bundle / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / "model.onnx").write_bytes(data)


def alter_golden(bundle: Path) -> None:
    tensors = read_tensors(bundle / "golden.safetensors")
    tensors["logits"][0, 3, 5] += 1e-3
    write_tensors(bundle / "golden.safetensors", tensors)
    sign(bundle, "golden.safetensors")


def save_graph(graph: onnx.ModelProto, bundle: Path) -> None:
    """As model.onnx, and no other beside it, which would look for its weights where they were."""
    onnx.save(graph, bundle / "model.onnx")
    sign(bundle, "model.onnx")
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["files"]["model.cpu.onnx"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    (bundle / "model.cpu.onnx").unlink()


def put_nan(bundle: Path) -> None:
    graph = onnx.load(bundle / "model.onnx")
    bias = next(tensor for tensor in graph.graph.initializer if tensor.name.endswith("lm_head.bias"))
    values = numpy_helper.to_array(bias).copy()
    values[3] = np.nan
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    save_graph(graph, bundle)


def alter_metadata(bundle: Path) -> None:
    graph = onnx.load(bundle / "model.onnx")
    model = next(entry for entry in graph.metadata_props if entry.key == "gptblock.model")
    model.value = model.value.replace('"n_head": 4', '"n_head": 2')
    save_graph(graph, bundle)


def test_an_intact_bundle_holds(tiny_bundle):
    result = call(tiny_bundle)
    assert result.exit_code == 0
    assert rows(result.stdout) == dict.fromkeys(CHECKS, "holds")
    last = result.stdout.splitlines()[-2:]
    assert last[0].startswith("not proved here: model.pt: ")
    assert last[1] == f"{tiny_bundle}: everything that can be proved here holds"
    assert result.stderr == "provider: cpu (asked for)\n"


def test_a_lone_file_names_what_cannot_be_proved(tiny_bundle, tmp_path):
    path = Path(shutil.copy(tiny_bundle / "model.onnx", tmp_path / "my [bold] :smile: model.onnx"))
    result = call(path)
    assert result.exit_code == 0
    assert rows(result.stdout) == dict.fromkeys(CHECKS[1:5], "holds")
    assert path.name in result.stdout.splitlines()[0]
    assert result.stdout.count("not proved here: ") == 2


def test_a_name_that_the_console_lacks_is_escaped(tiny_bundle, tmp_path):
    path = shutil.copy(tiny_bundle / "model.onnx", tmp_path / "\u2603.onnx")
    result = CliRunner(charset="cp1252").invoke(app, ["verify", "--provider", "cpu", str(path)])
    assert result.exit_code == 0
    assert result.stdout.split()[0] == "\\u2603.onnx"


@pytest.mark.parametrize(
    ("change", "code", "messages"),
    [
        (flip_a_byte, 3, ["is not as it was written: model.onnx: SHA-256 is "]),
        (lambda bundle: (bundle / "model.onnx").unlink(), 3, ["model.onnx: missing"]),
        (
            lambda bundle: (bundle / "manifest.json").unlink(),
            3,
            ["has graphs but no manifest.json", "or give", "/model.onnx"],
        ),
        (lambda bundle: (bundle / "extra.bin").touch(), 3, ["extra.bin: not in the manifest"]),
        (alter_metadata, 3, ["model.onnx: its configuration, tokenizer or precision is not the manifest's"]),
        (alter_golden, 5, ["is not the model it was exported from: model.onnx: logits at every length"]),
        (put_nan, 5, [f"model.onnx: {check}" for check in (CHECKS[0], *CHECKS[3:])]),
    ],
)
def test_an_altered_bundle(change, code, messages, bundle):
    change(bundle)
    result = call(bundle)
    assert result.exit_code == code
    assert "everything" not in result.stdout
    assert result.stderr.splitlines()[-1].startswith(f"error: {bundle} ")
    for message in messages:
        assert message in result.stderr
    assert ("FAILS" in rows(result.stdout).values()) is (code == 5)


def test_json_of_an_intact_bundle(tiny_bundle):
    result = call(tiny_bundle, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    printed = json.loads(result.stdout)
    assert list(printed) == ["path", "provider", "problems", "proofs", "unproved"]
    assert printed["path"] == str(tiny_bundle)
    assert printed["provider"] == asdict(Provider("cpu", 0, "asked for"))
    assert printed["problems"] == []
    assert [list(check) for check in printed["proofs"]["model.onnx"]] == [
        ["name", "cases", "worst", "allowed", "ok"]
    ] * len(CHECKS)
    assert [check["name"] for check in printed["proofs"]["model.onnx"]] == CHECKS
    assert all(check["ok"] for check in printed["proofs"]["model.onnx"])
    assert len(printed["unproved"]) == 1


def test_json_of_files_that_were_altered(bundle):
    flip_a_byte(bundle)
    result = call(bundle, "--json")
    assert result.exit_code == 3
    printed = json.loads(result.stdout)
    assert (printed["provider"], printed["proofs"], len(printed["problems"])) == (None, {}, 1)


def test_json_of_nan_is_null(bundle):
    put_nan(bundle)
    result = call(bundle, "--json")
    assert result.exit_code == 5
    worst = {check["name"]: check["worst"] for check in json.loads(result.stdout)["proofs"]["model.onnx"]}
    assert (worst[CHECKS[0]], worst[CHECKS[2]], worst[CHECKS[5]]) == (None, 0.0, None)


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime can use CUDA")
def test_cuda_is_cuda_or_an_error(tiny_bundle):
    result = call(tiny_bundle, "--provider", "cuda")
    assert (result.exit_code, result.stdout) == (4, "")


def test_nothing_there(tmp_path):
    result = call(tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "gptblock train" in result.stderr
