"""What this machine can do at best, measured in the same run, and what is left of it for a token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from weights import Size

PROMPT = 16
PREFILL = 200


_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}  # of a weight


def measure(weights: int, threads: int, device: str = "cpu") -> dict[str, float]:
    """Bytes a second read from so many weights of each precision, and float32 operations a second.

    In a process of its own: torch's threads would stay in the way of what is measured next.
    """
    command = [sys.executable, __file__, str(weights), str(threads), device]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    values: dict[str, float] = json.loads(done.stdout)
    return values


def floors(size: Size, limits: dict[str, float], precision: str, batch: int) -> dict[str, float]:
    """The least seconds of a step for one row, of a step for the batch, and of a prefill.

    A step reads the weights and the mean cache once, or multiplies, whichever takes longer. The limit of
    other products than fp32's is not measured, so there is only the floor of what is read.
    """
    weights = size.products * _BYTES[precision]
    read = limits[f"read_{precision}"]
    share = 0.5 if precision == "fp16" else 1.0  # of a number in the cache, of four bytes

    def step(rows: int, tokens: int) -> float:
        cache = share * rows * size.cache_bytes(PROMPT + tokens / 2)
        products = 2 * size.products * rows / limits["flops"] if precision == "fp32" else 0.0
        return max((weights + cache) / read, products)

    prefill = 2 * 12 * size.n_layer * size.n_embd**2 * PREFILL / limits["flops"]
    found = {"decode": step(1, size.new_tokens), "batch": step(batch, size.batch_tokens)}
    return found | ({"prefill": prefill} if precision == "fp32" else {})


def load_of_machine() -> dict[str, float]:
    """The load average of a minute, and the share of the processors that others use just now."""
    before = _processor_times()
    time.sleep(0.5)
    after = _processor_times()
    if not before or not after:
        return {"load": os.getloadavg()[0]}
    spent = [b - a for a, b in zip(before, after, strict=True)]
    idle = spent[3] + spent[4]
    return {"load": os.getloadavg()[0], "busy": round(1 - idle / max(1, sum(spent)), 3)}


def _processor_times() -> list[int] | None:
    try:
        return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return None


def _main(weights: int, threads: int, device: str) -> None:
    import torch

    torch.set_default_device(device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    torch.set_num_threads(threads)

    def rate(amount: float, work: object) -> float:
        """The best median of three thirds: a neighbour slows, and nothing hastens."""
        seconds: list[float] = []
        work()  # type: ignore[operator]
        end = time.perf_counter() + 0.6
        while time.perf_counter() < end or len(seconds) < 6:
            start = time.perf_counter()
            work()  # type: ignore[operator]
            wait()
            seconds.append(time.perf_counter() - start)
        third = len(seconds) // 3
        return amount / min(median(seconds[i * third : (i + 1) * third]) for i in range(3))

    def read(numbers: int) -> float:
        matrix = torch.rand(numbers // 768, 768)
        vector = torch.rand(768)
        by_product = rate(matrix.nbytes, lambda: matrix @ vector)
        return max(by_product, rate(matrix.nbytes, lambda: matrix.sum()))

    square = torch.rand(1024, 1024)
    found = {f"read_{precision}": read(weights * size // 4) for precision, size in _BYTES.items()}
    found |= {
        "flops": rate(2 * 1024**3, lambda: square @ square),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
