"""What a fresh process takes: the time until it speaks, and the memory of a loaded model."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gptblock.bundle.manifest import Precision
from gptblock.errors import GptblockError
from gptblock.runtime.model import load
from gptblock.runtime.session import ProviderName
from gptblock.runtime.speed import Spread
from gptblock.runtime.wheels import load_onnxruntime

_STARTS = 3  # processes timed
_MEASURE = """
import sys
from pathlib import Path
from gptblock.runtime.fresh import growth
path, precision, provider, threads, device_id = sys.argv[1:]
print(growth(Path(path), precision, provider, int(threads), int(device_id)))
"""


@dataclass(frozen=True)
class Footprint:
    """What a fresh process takes for one precision.

    `start_up` is from the interpreter's start to the first character of `gptblock generate`, imports
    included. `memory` is the resident bytes of a process that has opened the graph and generated a token,
    above those of its imports; on the host; None where the system does not tell. `memory_by_file` is that
    by `file_size`.
    """

    precision: str
    file: str
    file_size: int  # bytes
    threads: int
    start_up: Spread
    memory: int | None
    memory_by_file: float | None


def footprint(
    path: Path, graph: Path, precision: str, provider: ProviderName, threads: int, device_id: int
) -> Footprint:
    """Measure it: `path` is a bundle's folder or an .onnx, `graph` the .onnx that it has in `precision`.

    Raises GptblockError, with what the process said, where one fails.
    """
    options = ["--max-new-tokens", "1", "--temperature", "0", "--quiet", "--precision", precision]
    options += ["--provider", provider, "--threads", str(threads), "--device-id", str(device_id)]
    command = [sys.executable, "-m", "gptblock", "generate", *options, "--", str(path)]
    starts = [_first_character(command) for _ in range(_STARTS)]
    command = [sys.executable, "-c", _MEASURE, str(path), precision, provider, str(threads), str(device_id)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    _require_success(done.returncode, done.stderr)
    memory = None if done.stdout.strip() == "None" else int(done.stdout)
    size = graph.stat().st_size
    by_file = None if memory is None else memory / size
    return Footprint(precision, graph.name, size, threads, Spread.of(starts), memory, by_file)


def growth(
    path: Path, precision: Precision, provider: ProviderName, threads: int, device_id: int
) -> int | None:
    """`Footprint.memory` of the process that calls it, which is to have done nothing else before."""
    load_onnxruntime()
    before = resident_bytes()
    model = load(path, precision=precision, provider=provider, threads=threads, device_id=device_id)
    model.generate(max_new_tokens=1, temperature=0.0)
    after = resident_bytes()
    return None if before is None or after is None else after - before


def resident_bytes() -> int | None:
    """Of this process, from /proc; where there is none (macOS), the most so far; None on Windows."""
    if sys.platform == "win32":
        return None
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def _first_character(command: list[str]) -> float:
    """Seconds from starting `command` until it has written something on stdout."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - started
        _, said = process.communicate()
    _require_success(process.returncode, said)
    return seconds


def _require_success(code: int, said: str) -> None:
    if code:
        last = (said.strip().splitlines() or ["nothing"])[-1]
        raise GptblockError(f"a fresh {sys.executable} ended with exit code {code}, saying: {last}")
