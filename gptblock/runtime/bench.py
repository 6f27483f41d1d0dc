"""How fast a bundle runs on this machine.

Timed is the token loop that `generate` runs, greedy, on prompts of random tokens. All configurations take
turns in each round, so that whatever else the machine does disturbs all of them alike.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

import gptblock
from gptblock.bundle.manifest import Precision
from gptblock.bundle.store import Location, find_bundle, model_path, model_paths, read_manifest
from gptblock.errors import ConfigError, CorruptError, NotFoundError
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.fresh import Footprint, footprint
from gptblock.runtime.processor import allowed_cpus
from gptblock.runtime.session import Provider, ProviderName, open_session, read_metadata
from gptblock.runtime.speed import Lengths, Speed, Stopwatch, weight_bytes


@dataclass(frozen=True)
class Benchmark:
    """What was measured, and on what. Speeds are in the order of precision, threads, batch."""

    path: Path
    provider: Provider
    prompt_tokens: int  # of a row, before decoding
    max_new_tokens: int  # of a row, each round
    prefill_tokens: int  # of a row
    rounds: int
    speeds: list[Speed]
    footprints: list[Footprint]  # by precision, with the largest of the numbers of threads
    unmeasured: list[str]  # precisions that cannot be opened here, and why
    cpus: int  # that this process may use
    load_average: list[float] | None  # of 1, 5 and 15 minutes, when it began; None where there is none
    platform: str
    versions: dict[str, str]


def bench(
    path: Path | None = None,
    *,
    precisions: Sequence[Precision] = (),
    batches: Sequence[int] = (),
    threads: Sequence[int] = (),
    prompt_tokens: int | None = None,
    max_new_tokens: int | None = None,
    prefill_tokens: int | None = None,
    rounds: int = 5,
    provider: ProviderName = "auto",
    device_id: int = 0,
    use_tf32: bool = False,
    use_graphs: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Benchmark:
    """Measure every combination of precisions, threads and batches.

    `path` as for `gptblock.load`. By default: every precision that the bundle has and that opens here;
    batches of 1 and 8; 1 thread and as many as this process may use CPUs; prompt_tokens 16 or, of a
    block_size below 32, half of it; max_new_tokens 64 and prefill_tokens 256, or what fits.

    Raises ConfigError for numbers out of range, and for calls longer than block_size; NotFoundError for a
    precision that is not there; what `open_session` raises; GptblockError where a fresh process fails.
    """
    load_average = _load_average()
    sizes, counts = sorted(set(batches or (1, 8))), sorted(set(threads or (1, allowed_cpus())))
    _require_at_least("batch", sizes[0], 1)
    _require_at_least("rounds", rounds, 1)
    location = find_bundle(path)
    graphs = _graphs(location, precisions)
    decoders: dict[Precision, list[Decoder]] = {}
    unmeasured = []
    for precision, graph in graphs.items():
        beside = model_paths(location, precision)
        try:
            decoders[precision] = [
                Decoder(
                    open_session(
                        graph,
                        cpu_graph=beside.cpu,
                        batch_graph=beside.batch,
                        provider=provider,
                        threads=count,
                        device_id=device_id,
                        use_tf32=use_tf32,
                        use_graphs=use_graphs,
                    )
                )
                for count in counts
            ]
        except CorruptError as error:  # of a precision that the provider lacks, ONNX Runtime says so too
            if precision in precisions or len(graphs) == 1:
                raise
            unmeasured.append(f"{precision}: {error}")
    if not decoders:
        raise CorruptError(f"no graph of {location.path} opens here: {'; '.join(unmeasured)}")
    first = next(iter(decoders.values()))[0]
    lengths = _lengths(first.block_size, prompt_tokens, max_new_tokens, prefill_tokens)
    stopwatches = [
        Stopwatch(decoder, weight_bytes(graphs[precision], decoder), count, batch, lengths)
        for precision, opened in decoders.items()
        for count, decoder in zip(counts, opened, strict=True)
        for batch in sizes
    ]
    ruler = np.ones(max(stopwatch.step_bytes for stopwatch in stopwatches) // 4, np.int32)
    for i in range(rounds):
        on_progress(f"round {i + 1} of {rounds}: {len(stopwatches)} configurations in turn")
        for stopwatch in stopwatches:
            stopwatch.measure(np.random.default_rng(i), ruler)
    on_progress("start-up and memory, in fresh processes")
    return Benchmark(
        path=location.path,
        provider=first.session.provider,
        prompt_tokens=lengths.prompt,
        max_new_tokens=lengths.new,
        prefill_tokens=lengths.prefill,
        rounds=rounds,
        speeds=[stopwatch.speed() for stopwatch in stopwatches],
        footprints=[
            footprint(location.path, graphs[precision], precision, provider, counts[-1], device_id)
            for precision in decoders
        ],
        unmeasured=unmeasured,
        cpus=allowed_cpus(),
        load_average=load_average,
        platform=platform.platform(),
        versions=_versions(),
    )


def _graphs(location: Location, precisions: Sequence[Precision]) -> dict[Precision, Path]:
    """The files to measure. Raises NotFoundError for a precision that is not there."""
    if location.kind == "file":
        present = {read_metadata(location.path).precision}
    else:
        files = read_manifest(location.path).files
        present = {str(entry.precision) for name, entry in files.items() if name.endswith(".onnx")}
    known = [precision for precision in get_args(Precision) if precision in present]
    for precision in precisions:
        if precision not in known:
            raise NotFoundError(
                f"{location.path} has no {precision} graph; it has {', '.join(known) or 'none'}: "
                f"give one of these, or no --precision for all"
            )
    return {precision: model_path(location, precision) for precision in precisions or known}


def _lengths(block_size: int, prompt: int | None, new: int | None, prefill: int | None) -> Lengths:
    """What was given, else what fits. Raises ConfigError for what does not fit into block_size."""
    if prompt is None:
        prompt = max(1, min(16, block_size // 2))
    if new is None:
        new = max(2, min(64, block_size - prompt))
    if prefill is None:
        prefill = min(256, block_size)
    _require_at_least("prompt_tokens", prompt, 1)
    _require_at_least("max_new_tokens", new, 2)  # the first comes of the prompt: no step before the second
    _require_at_least("prefill_tokens", prefill, 1)
    for name, total, got in (
        ("prompt_tokens + max_new_tokens", prompt + new, f"{prompt} + {new}"),
        ("prefill_tokens", prefill, prefill),
    ):
        if total > block_size:
            raise ConfigError(
                f"{name} must be at most block_size, {block_size}: beyond it, overflow would be measured; "
                f"got {got}"
            )
    return Lengths(prompt, new, prefill)


def _require_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be >= {least}: got {value}")


def _load_average() -> list[float] | None:
    try:
        return list(os.getloadavg())
    except (AttributeError, OSError):  # Windows, and systems that keep none
        return None


def _versions() -> dict[str, str]:
    import onnxruntime

    return {
        "gptblock": gptblock.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
