"""What every peer's script shares: `convert` writes its model, `serve` answers on stdin and stdout.

A script is run by its peer's own python:

    script.py convert HF_FOLDER MODEL PRECISION
    script.py serve MODEL PRECISION THREADS [WORD...]

`serve` opens the model, generates one token, and says so; then each line in is a JSON object, and so is each
line out. The words are the script's to read. It may import only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], Prompts]  # prompts of one length, new tokens -> the new tokens, greedy

FIRST_PROMPT = list(range(1, 17))


class MissingError(Exception):
    """A peer has no such precision; the message says why, in one line."""


def main(
    convert: Callable[[Path, Path, str], None],
    load: Callable[..., Generate],  # model, precision, threads, words
    packages: Sequence[str],
) -> None:
    """Run a peer's script. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    command, *arguments = sys.argv[1:]
    try:
        if command == "convert":
            source, model, precision = arguments
            convert(Path(source), Path(model), precision)
            answer(converted=True)
            return
        model, precision, threads, *words = arguments
        generate = load(Path(model), precision, int(threads), *words)
        generate([FIRST_PROMPT], 1)
        answer(ready=True)
        for line in sys.stdin:
            answer(**_reply(json.loads(line), generate, packages))
    except MissingError as error:
        answer(missing=str(error))
    except Exception as error:
        answer(missing=f"{type(error).__name__}: {error}".splitlines()[0][:200])
        raise


def _reply(request: dict[str, object], generate: Generate, packages: Sequence[str]) -> dict[str, object]:
    match request:
        case {"do": "generate", "prompts": list(prompts), "tokens": int(tokens)}:
            start = time.perf_counter()
            ids = generate(prompts, tokens)
            seconds = time.perf_counter() - start
            if any(len(row) != tokens for row in ids):
                raise ValueError(f"asked for {tokens} tokens a row, got {[len(row) for row in ids]}")
            return {"seconds": seconds, "ids": ids}
        case {"do": "memory"}:
            return {"bytes": _peak_memory()}
        case {"do": "versions"}:
            return {"versions": {name: version(name) for name in packages}}
    raise ValueError(f"this is no request: {request}")


def _peak_memory() -> int | None:
    """The most memory that the process has held so far (resident, bytes), where the system tells."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
