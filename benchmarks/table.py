"""The measurements as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any


def markdown(report: dict[str, Any]) -> str:
    """Median and (lowest to highest) of each column; in brackets [%] the share of the limit."""
    batches = [batch for batch in report["batch"] if batch > 1]
    head = ["peer", "batch 1, tokens/s", *(f"batch {b}, tokens/s" for b in batches)]
    head += ["prefill 200, ms", "ready, s", "peak memory, MB", "same tokens as transformers"]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in report["rows"]:
        label = f"{row['peer']} {row['precision']}"
        if len(report["threads"]) > 1:
            label += f", {row['threads']} threads"
        if "missing" in row and not row.get("times"):
            lines.append(_line([label, f"missing: {row['missing']}", *[""] * (len(head) - 2)]))
            continue
        times, floors = row["times"], row["floors"]
        cells = [label, _rates(times.get("decode_1"), report["new_tokens"], floors.get("decode"))]
        for batch in batches:
            tokens = report["batch_tokens"] * batch
            cells.append(_rates(times.get(f"decode_{batch}"), tokens, floors.get(f"batch_{batch}"), batch))
        cells.append(_milliseconds(times.get("prefill"), floors.get("prefill")))
        cells.append(_spread(times.get("ready"), 1, 2))
        memory = [value for value in row["memory"] if value]
        cells.append(f"{median(memory) / 1e6:.0f}" if memory else "")
        cells.append(f"{row['agreeing']}/{row['compared']}")
        lines.append(_line(cells))
    return "\n".join([_heading(report), "", *lines, "", _limits(report), ""])


def _heading(report: dict[str, Any]) -> str:
    busy = [f"{x.get('busy', 0):.0%}" for x in report["load"]]
    return (
        f"**{report['size']}**: {report['rounds']} rounds, {', '.join(map(str, report['threads']))} threads, "
        f"{report['machine']}; others used {', '.join(busy)} of the processors before the rounds."
    )


def _limits(report: dict[str, Any]) -> str:
    found = report["limits"]
    precisions = list(dict.fromkeys(row["precision"] for row in report["rows"]))
    reading = ", ".join(
        f"{found[f'read_{each}'] / 1e9:.0f} GB/s over the {each} weights" for each in precisions
    )
    return (
        f"Limits measured in the rounds (median): reading {reading}; "
        f"fp32 products {found['flops'] / 1e9:.0f} GFLOP/s. In brackets: the share of them."
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rates(seconds: list[float] | None, tokens: int, floor: float | None, rows: int = 1) -> str:
    if not seconds:
        return ""
    share = f" [{floor * tokens / rows / median(seconds):.0%}]" if floor else ""
    return _spread([tokens / value for value in seconds], 1, 0) + share


def _milliseconds(seconds: list[float] | None, floor: float | None) -> str:
    if not seconds:
        return ""
    share = f" [{floor / median(seconds):.0%}]" if floor else ""
    return _spread(seconds, 1000, 1) + share


def _spread(values: list[float] | None, factor: float, digits: int) -> str:
    if not values:
        return ""
    low, middle, high = (f"{x * factor:,.{digits}f}" for x in (min(values), median(values), max(values)))
    return f"{middle} ({low} to {high})"
