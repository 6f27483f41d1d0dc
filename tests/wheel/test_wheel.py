"""The wheel, installed with the extra `cpu` alone: what a deployment machine has, and no torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gptblock.bundle.manifest import MINIMUM_ONNXRUNTIME
from gptblock.config import SamplingConfig
from gptblock.text.char import CharTokenizer

if TYPE_CHECKING:
    from gptblock.model.gpt import GPT

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[2]
SOURCES = ("gptblock", "cli", "export", "artifacts/demo", "pyproject.toml", "README.md", "LICENSE")
OLDEST, TOO_OLD = "1.28.0", "1.27.0"
NOT_FOR_RUNNING = {"torch", "onnx", "onnxscript", "matplotlib", "pooch", "tokenizers", "onnxruntime-gpu"}

supported = pytest.mark.parametrize("deployed", ["newest", OLDEST], indirect=True, scope="module")
refused = pytest.mark.parametrize("deployed", [TOO_OLD], indirect=True, scope="module")


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder with nothing in it to run commands in."""

    folder: Path
    empty: Path

    def run(self, program: str, *args: str, warnings: str = "error") -> subprocess.CompletedProcess[str]:
        """A program of the environment, with no source tree in its way."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        scripts = self.folder / ("Scripts" if os.name == "nt" else "bin")
        return subprocess.run(
            [str(scripts / program), *args],
            cwd=self.empty,
            env={**kept, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONUTF8": "1", "PYTHONWARNINGS": warnings},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )

    def gptblock(self, *args: str) -> str:
        """What `gptblock` prints on stdout; it must end well."""
        done = self.run("gptblock", *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_pip(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-m", "pip", "--disable-pip-version-check", *args, warnings="ignore")

    def pip(self, *args: str) -> str:
        done = self.try_pip(*args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def versions(self) -> dict[str, str]:
        """Distributions and their versions."""
        listed = json.loads(self.pip("list", "--format", "json"))
        return {package["name"].lower(): package["version"] for package in listed}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh virtual environment; without a package index to install from there is nothing to try."""
    made = Environment(tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty"))
    subprocess.run([sys.executable, "-m", "venv", str(made.folder)], check=True)
    downloads = str(tmp_path_factory.mktemp("downloads"))
    probe = made.try_pip("download", "--no-deps", "--retries", "1", "-d", downloads, f"onnxruntime=={OLDEST}")
    if probe.returncode:
        reason = probe.stderr.strip().splitlines()[-1]
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"no package index to install from: {reason}")
    return made


@pytest.fixture(scope="module")
def wheel(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what it is made of: building writes into the tree."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)
    environment.pip("wheel", "--no-deps", "-w", str(out), str(tree))
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(environment: Environment, wheel: Path) -> Environment:
    """The environment with the wheel and its extra `cpu`."""
    environment.pip("install", f"{wheel}[cpu]")
    return environment


@pytest.fixture(scope="module")
def deployed(request: pytest.FixtureRequest, installed: Environment) -> Environment:
    """The same, with the onnxruntime that a test asks for."""
    if request.param == "newest":
        installed.pip("install", "--upgrade", "onnxruntime")
    else:
        installed.pip("install", f"onnxruntime=={request.param}")
    return installed


def test_holds_every_module_and_nothing_at_the_top(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"gptblock", "gptblock-0.1.0.dist-info"}
    modules = {path.relative_to(ROOT) for path in (ROOT / "gptblock").rglob("*.py")}
    modules |= {
        Path("gptblock", folder, path.name)
        for folder in ("cli", "export")
        for path in (ROOT / folder).glob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == {path.as_posix() for path in modules}
    assert "gptblock/py.typed" in names


def test_holds_the_demo(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    demo = {path.name for path in (ROOT / "artifacts" / "demo").iterdir()}
    assert {
        name.removeprefix("gptblock/demo/") for name in names if name.startswith("gptblock/demo/")
    } == demo
    assert {"manifest.json", "model.onnx", "golden.safetensors", "README.md"} <= demo


def test_metadata(wheel: Path) -> None:
    metadata = read_metadata(wheel)
    needs = metadata.get_all("Requires-Dist", [])
    base = {re.split(r"[<>=]", need)[0] for need in needs if "extra ==" not in need}
    assert base == {"numpy", "rich", "safetensors", "typer"}
    assert [need for need in needs if 'extra == "cpu"' in need] == [
        f'onnxruntime>={MINIMUM_ONNXRUNTIME}; extra == "cpu"'
    ]
    assert [need for need in needs if 'extra == "gpu"' in need] == [
        f'onnxruntime-gpu[cuda,cudnn]>={MINIMUM_ONNXRUNTIME}; extra == "gpu"'
    ]
    assert (metadata["License-Expression"], metadata["License-File"]) == ("MIT", "LICENSE")


@supported
def test_environment_has_the_runtime_and_no_training_stack(deployed: Environment) -> None:
    assert NOT_FOR_RUNNING & set(deployed.versions()) == set()


@supported
def test_help(deployed: Environment) -> None:
    printed = deployed.gptblock("--help")
    assert "Usage: gptblock [OPTIONS] COMMAND [ARGS]..." in printed
    assert "Generate text from a bundle folder, a run folder, or a single .onnx." in printed


@supported
def test_generate_takes_the_demo(deployed: Environment) -> None:
    done = deployed.run("gptblock", "generate", "-n", "200", "--seed", "7")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 200 + len("\n")
    said = done.stderr.splitlines()
    assert said[0] == "model: the demo that ships with gptblock, for there is no artifacts/model here"
    assert said[1].startswith("provider: cpu (CUDA is not available: ")
    assert said[2] == "seed: 7"
    assert re.fullmatch(r"200 tokens, \d+ tokens/s, finish reason: length", said[3])
    assert deployed.gptblock("generate", "-n", "200", "--seed", "7", "--quiet") == done.stdout
    assert deployed.gptblock("generate", "-n", "200", "--seed", "8", "--quiet") != done.stdout


@supported
@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (0.9, 7)])
def test_generate_says_what_torch_says(
    deployed: Environment,
    tiny_model: GPT,
    tiny_tokenizer: CharTokenizer,
    tiny_bundle: Path,
    temperature: float,
    seed: int,
) -> None:
    import torch

    prompt = torch.from_numpy(tiny_tokenizer.encode("ROMEO:"))[None]
    expected = tiny_model.generate(prompt, 60, SamplingConfig(temperature=temperature), seed=seed)[0].numpy()
    options = ["-p", "ROMEO:", "-n", "60", "-t", str(temperature), "--seed", str(seed)]
    assert deployed.gptblock("generate", str(tiny_bundle), *options) == tiny_tokenizer.decode(expected) + "\n"


@supported
def test_verify_proves_the_bundle(deployed: Environment, tiny_bundle: Path) -> None:
    *table, verdict = deployed.gptblock("verify", str(tiny_bundle)).splitlines()
    assert verdict == f"{tiny_bundle}: everything that can be proved here holds"
    found = json.loads(deployed.gptblock("verify", str(tiny_bundle), "--json"))
    assert (found["problems"], list(found["proofs"])) == ([], ["model.onnx", "model.cpu.onnx"])
    checks = [*found["proofs"]["model.onnx"], *found["proofs"]["model.cpu.onnx"]]
    assert [check["name"] for check in checks if not check["ok"] or check["cases"] < 1] == []
    assert max(check["worst"] for check in checks) <= 1e-5
    rows = [re.split(r"\s{2,}", line.strip()) for line in table if line.rstrip().endswith(" holds")]
    assert [(row[0], int(row[1])) for row in rows] == [(check["name"], check["cases"]) for check in checks]
    assert [line.split(":")[0] for line in found["unproved"]] == ["model.pt"]


@supported
def test_verify_proves_the_demo(deployed: Environment) -> None:
    assert deployed.gptblock("verify").endswith("everything that can be proved here holds\n")


@supported
def test_inspect(deployed: Environment, tiny_model: GPT, tiny_bundle: Path) -> None:
    found = json.loads(deployed.gptblock("inspect", str(tiny_bundle), "--json"))
    assert (found["model"], found["problems"]) == (tiny_model.config.to_dict(), {})
    printed = deployed.gptblock("inspect", str(tiny_bundle))
    assert re.search(r"^needs +onnxruntime 1\.28 or newer$", printed, flags=re.MULTILINE)
    for name, entry in found["files"].items():
        assert re.search(rf"^ *{re.escape(name)} .*{entry['sha256'][:8]} +holds", printed, flags=re.MULTILINE)


@supported
def test_doctor(deployed: Environment, request: pytest.FixtureRequest) -> None:
    version = deployed.versions()["onnxruntime"]
    assert (version == OLDEST) is (request.node.callspec.params["deployed"] == OLDEST)
    found = json.loads(deployed.gptblock("doctor", "--json"))
    assert (found["onnxruntime"], found["wheels"]) == (version, {"onnxruntime": version})
    assert (found["usable"], found["can_generate"], found["torch"]) == (["cpu"], True, None)
    lines = deployed.gptblock("doctor").splitlines()
    assert f"{'onnxruntime':<16}{version}" in lines
    assert "ok       models run on the CPU" in lines
    assert "         -> pip install 'gptblock[train]'" in lines


@supported
@pytest.mark.parametrize("command", ["train", "export"])
def test_what_needs_the_training_stack_says_how_to_get_it(deployed: Environment, command: str) -> None:
    done = deployed.run("gptblock", command)
    assert done.returncode == 4
    assert done.stderr == (
        f"error: gptblock {command} needs torch, which is not installed: pip install 'gptblock[train]'\n"
    )


@refused
@pytest.mark.parametrize("command", ["generate", "verify"])
def test_older_onnxruntime_is_refused(deployed: Environment, command: str) -> None:
    done = deployed.run("gptblock", command)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"onnxruntime {TOO_OLD} is too old, {MINIMUM_ONNXRUNTIME} or newer is needed" in done.stderr
    assert f"pip install --upgrade 'onnxruntime>={MINIMUM_ONNXRUNTIME}'" in done.stderr


@refused
def test_doctor_finds_an_older_onnxruntime(deployed: Environment) -> None:
    done = deployed.run("gptblock", "doctor")
    assert done.returncode == 4
    assert f"problem  onnxruntime {TOO_OLD} is too old" in done.stdout
    assert f"-> pip install --upgrade 'onnxruntime>={MINIMUM_ONNXRUNTIME}'" in done.stdout


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())
