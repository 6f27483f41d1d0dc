"""A peer's process, and the environment that it runs in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    """A script in peers/, and what its environment is installed from; none: this python.

    `words` are the script's own, and `model` is the peer whose converted model it runs, if not its own.
    """

    name: str
    script: str
    packages: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    model: str = ""


PEERS = {
    peer.name: peer
    for peer in (
        Peer("gptblock", "gptblock_peer.py"),
        Peer("transformers", "transformers_peer.py"),
        Peer("llama.cpp", "llama_peer.py", ("llama-cpp-python", "gguf", "safetensors")),
        Peer(
            "openvino",
            "openvino_peer.py",
            ("openvino-genai", "optimum-intel[openvino]", _TORCH),
        ),
        Peer("ctranslate2", "ctranslate2_peer.py", ("ctranslate2", "transformers", _TORCH)),
        Peer(
            "onnxruntime-genai",
            "genai_peer.py",
            ("onnxruntime-genai", "onnxruntime", "onnx", "onnx_ir", "transformers", _TORCH),
        ),
    )
}

GPU_PEERS = {
    f"{kind}{mark}": Peer(f"{kind}{mark}", f"{kind}_peer.py", (), ("cuda", steps), kind)
    for kind in ("gptblock", "torch")
    for mark, steps in (("", "launched"), (" with CUDA graphs", "captured"))
}


class MissingError(Exception):
    """A row that there is not; the message says why."""


def python_of(peer: Peer, folder: Path) -> Path:
    """The python that runs the peer, in an environment made and filled now if it is not there."""
    if not peer.packages:
        return Path(sys.executable)
    environment = folder / peer.name
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = environment / "installed.json"
    if not done.is_file() or json.loads(done.read_text()) != list(peer.packages):
        if not python.exists():
            venv.create(environment, with_pip=True)
        _run([python, "-m", "pip", "install", "-q", *peer.packages], f"{peer.name} cannot be installed")
        done.write_text(json.dumps(peer.packages))
    return python


def converted(peer: Peer, python: Path, weights: Path, precision: str) -> Path:
    """The peer's own form of the weights, beside them, made now if it is not there."""
    model = weights.with_name(f"{peer.model or peer.name}-{precision}")
    if model.exists():
        return model
    output = _run(
        [python, _HERE / "peers" / peer.script, "convert", weights, model, precision], "no conversion"
    )
    if not model.exists():
        raise MissingError(json.loads(output.splitlines()[-1])["missing"])
    return model


def _run(command: list[str | Path], what: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not done.stdout.strip():
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise MissingError(f"{what}: {lines[-1].strip()[:200]}")
    return done.stdout


class Worker:
    """A running peer. `ready` is the seconds from the start of its process to its first token."""

    def __init__(self, peer: Peer, python: Path, model: Path, precision: str, threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [python, _HERE / "peers" / peer.script, "serve", model, precision, str(threads), *peer.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._answer()
        self.ready = time.perf_counter() - start

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        """One request and its answer. Raises MissingError where the peer fails."""
        assert self._process.stdin
        try:
            print(json.dumps({"do": do, **values}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise MissingError("its process has ended") from None
        return self._answer()

    def generate(self, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
        """Seconds, and the new tokens of each prompt."""
        answer = self.ask("generate", prompts=prompts, tokens=tokens)
        return answer["seconds"], answer["ids"]

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"missing": "its process died without a word"}
        if "missing" in answer:
            self.close()
            raise MissingError(answer["missing"])
        return answer
