"""How fast gptblock and its peers generate from the same weights: see benchmarks/README.md.

python benchmarks/generation.py --size S --rounds 5 --json s.json --markdown s.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from pathlib import Path
from statistics import median
from typing import Any

from limits import PREFILL, PROMPT, floors, load_of_machine, measure
from table import markdown
from weights import SIZES, Size, make_weights
from worker import GPU_PEERS, PEERS, MissingError, Peer, Worker, converted, python_of

GREEDY_PROMPTS, GREEDY_TOKENS = 3, 40
TIMINGS, ENOUGH_SECONDS = 3, 3.0  # of each column and round: so many, or so long

Row = dict[str, Any]


def main() -> None:
    options = _options()
    size = SIZES[options.size]
    folder = options.folder.resolve()
    peers = GPU_PEERS if options.gpu else PEERS
    weights = folder / "models" / options.size / "weights"
    weights.parent.mkdir(parents=True, exist_ok=True)
    make_weights(size, weights)
    draw = random.Random(options.seed)

    say("reference: transformers")
    questions = prompts(draw, size, GREEDY_PROMPTS, PROMPT)
    reference = _prepared(PEERS["transformers"], "fp32", folder, weights)
    _, expected = _greedy(reference, options.threads[0], questions)
    rows: list[Row] = []
    for name in options.peers:
        for precision in options.precision:
            for threads in options.threads:
                say(f"{name} {precision}: prepare and compare")
                rows.append(_checked(peers[name], precision, threads, folder, weights, questions, expected))

    loads, limits = [], []
    for number in range(options.rounds):
        loads.append(load_of_machine())
        limits.append(measure(size.products, max(options.threads), "cuda" if options.gpu else "cpu"))
        for row in rows:
            if "missing" not in row:
                say(f"round {number + 1} of {options.rounds}: {row['peer']} {row['precision']}")
                _time(row, size, options.batch, draw)

    found = {name: median(values[name] for values in limits) for name in limits[0]}
    for row in rows:
        row.pop("command", None)
        row["floors"] = {"decode": floors(size, found, row["precision"], 1)["decode"]}
        for batch in options.batch:
            row["floors"][f"batch_{batch}"] = floors(size, found, row["precision"], batch)["batch"]
        if row["precision"] == "fp32":
            row["floors"]["prefill"] = floors(size, found, "fp32", 1)["prefill"]
    report = {
        "size": options.size,
        "rounds": options.rounds,
        "threads": options.threads,
        "batch": options.batch,
        "seed": options.seed,
        "machine": _machine(options.gpu),
        "prompt": PROMPT,
        "prefill": PREFILL,
        "new_tokens": size.new_tokens,
        "batch_tokens": size.batch_tokens,
        "load": loads,
        "limits": found,
        "limits_of_rounds": limits,
        "rows": rows,
    }
    table = markdown(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(table)
    print(table)


def prompts(draw: random.Random, size: Size, rows: int, length: int) -> list[list[int]]:
    """Never used before, for some peers keep what they have read."""
    return [[draw.randrange(size.vocab_size) for _ in range(length)] for _ in range(rows)]


def _machine(gpu: bool) -> str:
    machine = f"{platform.machine()} with {os.cpu_count()} processors"
    if not gpu:
        return machine
    import torch

    return f"{torch.cuda.get_device_name()}, {machine}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _prepared(peer: Peer, precision: str, folder: Path, weights: Path) -> tuple[Any, ...]:
    """What `Worker` takes, without the threads."""
    python = python_of(peer, folder)
    return peer, python, converted(peer, python, weights, precision), precision


def _greedy(
    command: tuple[Any, ...], threads: int, questions: list[list[int]]
) -> tuple[dict[str, str], list[list[int]]]:
    """The peer's versions, and what it says to each question alone."""
    with Worker(*command, threads) as worker:
        answers = [worker.generate([question], GREEDY_TOKENS)[1][0] for question in questions]
        return worker.ask("versions")["versions"], answers


def _checked(
    peer: Peer,
    precision: str,
    threads: int,
    folder: Path,
    weights: Path,
    questions: list[list[int]],
    expected: list[list[int]],
) -> Row:
    """A row whose peer says what transformers says; in fp32, every token of it."""
    row: Row = {"peer": peer.name, "precision": precision, "threads": threads, "times": {}, "memory": []}
    try:
        row["command"] = _prepared(peer, precision, folder, weights)
        row["versions"], answers = _greedy(row["command"], threads, questions)
    except MissingError as error:
        return row | {"missing": str(error)}
    row["agreeing"] = sum(map(_common, answers, expected))
    row["compared"] = sum(map(len, expected))
    if precision == "fp32" and row["agreeing"] < row["compared"]:
        row["missing"] = f"only {row['agreeing']} of {row['compared']} greedy tokens are transformers'"
    return row


def _common(answer: list[int], expected: list[int]) -> int:
    """How many tokens are the same before the first that is not."""
    same = [a == b for a, b in zip(answer, expected, strict=True)]
    return same.index(False) if False in same else len(same)


def _time(row: Row, size: Size, batches: list[int], draw: random.Random) -> None:
    """One process of the peer: every column, after a call of the same shape that is not counted."""

    def time(column: str, rows: int, length: int, tokens: int) -> None:
        worker.generate(prompts(draw, size, rows, length), min(tokens, 8))
        spent: list[float] = []
        while len(spent) < TIMINGS and sum(spent) < ENOUGH_SECONDS:
            spent.append(worker.generate(prompts(draw, size, rows, length), tokens)[0])
        row["times"].setdefault(column, []).extend(spent)

    try:
        with Worker(*row["command"], row["threads"]) as worker:
            row["times"].setdefault("ready", []).append(worker.ready)
            if 1 in batches:
                time("decode_1", 1, PROMPT, size.new_tokens)
            row["memory"].append(worker.ask("memory")["bytes"])
            time("prefill", 1, PREFILL, 1)
            for batch in batches:
                if batch > 1:
                    time(f"decode_{batch}", batch, PROMPT, size.batch_tokens)
    except MissingError as error:
        row["missing"] = str(error)


def _options() -> argparse.Namespace:
    def some(kind: type, among: object = None) -> Any:
        def parse(text: str) -> list[Any]:
            values = [kind(word) for word in text.split(",")]
            if among and not set(values) <= set(among):  # type: ignore[call-overload]
                raise ValueError
            return values

        return parse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=SIZES, default="S")
    parser.add_argument(
        "--gpu", action="store_true", help="gptblock and torch on CUDA, with and without CUDA graphs"
    )
    parser.add_argument("--peers", type=some(str), help="default: all")
    parser.add_argument("--threads", type=some(int), default=[2], help="several: a row for each")
    parser.add_argument("--batch", type=some(int), default=[1, 32])
    parser.add_argument(
        "--precision",
        type=some(str, ("fp32", "fp16", "int8")),
        help="default: fp32,int8; with --gpu fp32,fp16",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7, help="of the prompts")
    parser.add_argument(
        "--folder", type=Path, default=Path(__file__).parent / ".peers", help="environments, models"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    options.precision = options.precision or ["fp32", "fp16" if options.gpu else "int8"]
    peers = list(GPU_PEERS if options.gpu else PEERS)
    options.peers = options.peers or peers
    if unknown := set(options.peers) - set(peers):
        parser.error(f"peers must be of {', '.join(peers)}: got {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    main()
