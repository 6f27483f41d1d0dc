"""What training on a large text takes: anonymous memory, and the time until the first step. Linux only.

    python benchmarks/large_text.py --bytes 1000000000 -- --tokenizer char

makes a text of so many bytes, trains 20 steps on it twice, each in a process of its own, and removes
all of it. What follows `--` goes to `gptblock train`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gptblock.text.corpus import load_corpus

TINY = "--n-layer 2 --n-head 2 --n-embd 32 --batch-size 8 --max-iters 20 --eval-interval 10 --eval-iters 5"
EVERY = 0.02  # seconds from one look at the memory to the next


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bytes", type=int, default=10**9)
    parser.add_argument("--data", default="pydoc", help="the text that is repeated, its lines turned around")
    parser.add_argument("--folder", type=Path, help="where there is room for twice the text")
    parser.add_argument("options", nargs="*", help="for gptblock train")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder = Path(place)
        write_text(folder / "text.txt", load_corpus(args.data).text, args.bytes)
        for start in ("first", "second"):
            seconds, total, peak = train(folder, args.options)
            print(
                f"{start} start: {seconds:.1f} s to the first step, {total:.1f} s in all, "
                f"{peak / 2**20:.0f} MiB anonymous memory at its peak"
            )


def write_text(path: Path, text: str, size: int) -> None:
    """The text again and again up to `size` bytes, begun at another line each time."""
    lines, draw = text.splitlines(keepends=True), random.Random(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        while file.tell() < size:
            start = draw.randrange(len(lines))
            file.write("".join(lines[start:] + lines[:start]))


def train(folder: Path, options: Sequence[str]) -> tuple[float, float, int]:
    """Seconds to the first evaluation, seconds in all, and the most bytes of anonymous memory."""
    command = [sys.executable, "-m", "gptblock", "train", str(folder / "text.txt"), *TINY.split()]
    command += ["--device", "cpu", "--overwrite", "--out", str(folder / "run"), *options]
    environment = os.environ | {"GPTBLOCK_CACHE": str(folder / "cache")}
    log = folder / "log"
    started, first, peak = time.perf_counter(), 0.0, 0
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr, env=environment) as process:
        while process.poll() is None:
            peak = max(peak, anonymous(process.pid))
            if not first and "\nstep 0:" in log.read_text():
                first = time.perf_counter() - started
            time.sleep(EVERY)
    if process.returncode:
        sys.exit(log.read_text())
    return first, time.perf_counter() - started, peak


def anonymous(pid: int) -> int:
    """Bytes of a process's memory that no file backs; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


if __name__ == "__main__":
    main()
