"""A study that has been made: its table and verdict, and everything that they come from, as JSON and SVG."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from gptblock.bundle.store import write_file
from gptblock.errors import InputError, RunExistsError
from gptblock.study.design import Table, Verdict
from gptblock.study.run import Run

RESULTS = "results.json"
PICTURE = "curves.svg"


@dataclass(frozen=True)
class Report:
    """What is written of a study, but for its picture."""

    study: str
    title: str
    expected: str
    verdict: Verdict
    table: Table
    corpus: str
    corpus_sha256: str
    quick: bool
    seeds: tuple[int, ...]
    arms: dict[str, dict[str, object]]  # how each was trained
    runs: tuple[Run, ...]
    versions: dict[str, str]
    svg: str

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; without the picture."""
        values = dataclasses.asdict(self)
        del values["svg"]
        return values


def require_free(folder: Path, overwrite: bool) -> None:
    """Raise RunExistsError where results must not go: over others unasked, among other files ever.

    Raises InputError where they cannot go.
    """
    if folder.exists() and not folder.is_dir():
        raise RunExistsError(f"{folder} is a file, and results are a folder: give another --out")
    if (folder / RESULTS).exists():
        if not overwrite:
            raise RunExistsError(
                f"{folder} holds a study's results: --overwrite replaces them, "
                f"and another --out leaves them alone"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise RunExistsError(
            f"{folder} holds other files and no study's results: give --out a new or an empty folder"
        )
    # Better known now than when everything has run.
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"nothing can be written into {folder}, for {existing} does not allow it")


def write_report(report: Report, folder: Path) -> None:
    """Write both files; results.json, by which a folder is known to hold results, first."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / RESULTS, json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n")
    write_file(folder / PICTURE, report.svg)
