"""gptblock: brought in by its own convert and export, generated with the runtime's own loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

from protocol import Generate, MissingError, Prompts, main


def convert(source: Path, model: Path, precision: str) -> None:
    """A run with its proved bundle; one beside fp32 is added to the run that fp32 made."""
    run = model.with_name(model.name.replace(precision, "fp32"))
    if not run.exists():
        _gptblock("convert", source, "--from", "gpt2", "--out", run, "--format", "onnx")
    if precision != "fp32":
        wanted = [each for each in ("int8", "fp16") if (run / f"bundle/model.{each}.onnx").is_file()]
        if precision not in wanted:
            words = [word for each in (*wanted, precision) for word in ("--precision", each)]
            _gptblock("export", run, "--format", "onnx", *words)
        model.symlink_to(run.resolve())


def _gptblock(*words: str | Path) -> None:
    command = [sys.executable, "-m", "gptblock", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.translate(dict.fromkeys(range(0x2500, 0x2580), " ")).split())[-150:]
        raise MissingError(f"gptblock {words[0]} ended with exit code {done.returncode}: {said}")


def load(
    model: Path,
    precision: str,
    threads: int,
    provider: Literal["cpu", "cuda"] = "cpu",
    steps: str = "launched",
) -> Generate:
    import numpy as np

    import gptblock
    from gptblock.config import SamplingConfig
    from gptblock.runtime.generate import Row, decode

    decoder = gptblock.load(
        model, precision=precision, provider=provider, threads=threads, use_graphs=steps == "captured"
    ).decoder
    greedy = SamplingConfig(temperature=0.0)

    def generate(prompts: Prompts, tokens: int) -> Prompts:
        rows = [Row(np.array(prompt, np.int64), tokens, np.random.default_rng(0)) for prompt in prompts]
        for _ in decode(decoder, rows, greedy, "stop"):
            pass
        return [row.new_ids.tolist() for row in rows]

    return generate


if __name__ == "__main__":
    main(convert, load, ("gptblock", "onnxruntime"))
