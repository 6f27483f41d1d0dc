"""`gptblock bench`: how fast a bundle runs on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gptblock.cli.console import ignore, say, show, tell_provider, write, write_json
from gptblock.cli.options import (
    DEMO_TAKEN,
    MACHINE,
    BundleArgument,
    CudaGraphs,
    DeviceId,
    Json,
    PrecisionName,
    Provider,
    Quiet,
    Tf32,
)

if TYPE_CHECKING:
    from gptblock.bundle.manifest import Precision
    from gptblock.runtime.bench import Benchmark

MEASURED = "What is measured"


def bench(
    bundle: BundleArgument = None,
    precision: Annotated[
        list[PrecisionName] | None,
        typer.Option(
            help="Repeat for several.", show_default="all that the bundle has", rich_help_panel=MEASURED
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Rows at once; repeat for several.", show_default="1 and 8", rich_help_panel=MEASURED
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a row before decoding.",
            show_default="16, or half of block_size",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            "-n",
            help="Tokens of a row that are decoded.",
            show_default="64, or what fits",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    prefill_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a row that are read at once.",
            show_default="256, or block_size",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="All configurations take turns in each.", rich_help_panel=MEASURED)
    ] = 5,
    provider: Provider = "auto",
    device_id: DeviceId = 0,
    tf32: Tf32 = False,
    cuda_graphs: CudaGraphs = False,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            help="CPU threads; repeat for several.",
            show_default="1, and those this process may use",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how fast a bundle runs on this machine, and how near to its memory's speed.

    Decoding, prefill, time to the first token, start-up and memory, for every combination of precision,
    threads and batch, at the median (p50) and the 95th percentile (p95).
    """
    from gptblock.bundle.store import find_bundle
    from gptblock.runtime.bench import bench as run

    tell = ignore if quiet else say
    location = find_bundle(bundle)
    if location.is_demo:
        tell(DEMO_TAKEN)
    result = run(
        location.path,
        precisions=cast("Sequence[Precision]", [name.value for name in precision or ()]),
        batches=batch or (),
        threads=threads or (),
        prompt_tokens=prompt_tokens,
        max_new_tokens=max_new_tokens,
        prefill_tokens=prefill_tokens,
        rounds=rounds,
        provider=provider,
        device_id=device_id,
        use_tf32=tf32,
        use_graphs=cuda_graphs,
        on_progress=tell,
    )
    tell_provider(tell, result.provider, device_id=device_id > 0, tf32=tf32, cuda_graphs=cuda_graphs)
    if json:
        write_json(dataclasses.asdict(result) | {"path": str(result.path)})
    else:
        _print(result)


def _print(result: Benchmark) -> None:
    """Speeds, how far they are from the machine's, fresh processes; and what was not measured."""
    speeds = [
        (speed.precision, speed.threads, speed.batch, what, tokens, _ms(spread.p50), _ms(spread.p95))
        for speed in result.speeds
        for what, tokens, spread in (
            ("decode", f"{speed.decode_tokens_per_second:,.0f}", speed.decode),
            (f"prefill {result.prefill_tokens}", f"{speed.prefill_tokens_per_second:,.0f}", speed.prefill),
            (f"first after {result.prompt_tokens}", "", speed.first_token),
        )
    ]
    _print_table(("precision", "threads", "batch", "what", "tokens/s", "p50 ms", "p95 ms"), speeds)
    floors = [
        (
            speed.precision,
            speed.threads,
            speed.batch,
            _mega(speed.step_bytes),
            _known(speed.bandwidth, lambda value: f"{value / 1e9:.1f}"),
            _known(speed.floor, _ms),
            _known(speed.reached, lambda value: f"{value:.0%}"),
        )
        for speed in result.speeds
    ]
    _print_table(("precision", "threads", "batch", "MB a step", "GB/s", "floor ms", "reached"), floors)
    footprints = [
        (
            footprint.precision,
            footprint.threads,
            _ms(footprint.start_up.p50),
            _ms(footprint.start_up.p95),
            _mega(footprint.file_size),
            _known(footprint.memory, _mega),
            _known(footprint.memory_by_file, lambda value: f"{value:.1f} x"),
        )
        for footprint in result.footprints
    ]
    columns = ("precision", "threads", "start p50 ms", "p95 ms", "file MB", "memory MB", "of file")
    _print_table(columns, footprints)
    write(
        "decode: one step; first after N: the first token of a row of N\n"
        "floor: weights and cache of a step, read once at the GB/s measured here; reached: floor / decode\n"
        "start: to the first character of generate; memory: a loaded model's, above that of the imports\n"
    )
    for line in result.unmeasured:
        write(f"not measured here: {line}\n")


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Text to the left, numbers to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for column in columns:
        table.add_column(column, justify="left" if column in ("precision", "what") else "right")
    for row in rows:
        table.add_row(*map(str, row))
    show(table)


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "unknown" if value is None else text(value)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds < 10 else f"{milliseconds:,.1f}"


def _mega(count: float) -> str:
    return f"{count / 1e6:,.1f}"
