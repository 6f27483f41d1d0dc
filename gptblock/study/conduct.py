"""From a study's name to its report."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Sequence

import torch

import gptblock
from gptblock.errors import ConfigError, CorpusError
from gptblock.study.design import Study, shortened
from gptblock.study.feedforward import feedforward
from gptblock.study.ladder import ladder
from gptblock.study.norm import norm
from gptblock.study.parallel import OnDone, run_all
from gptblock.study.picture import draw_curves
from gptblock.study.report import Report
from gptblock.study.residual import residual
from gptblock.study.results import Results
from gptblock.study.run import LECTURE
from gptblock.text.corpus import load_corpus
from gptblock.training.material import prepare

LECTURES_CORPUS, FALLBACK = "tinyshakespeare", "pydoc"

STUDIES: dict[str, Callable[[int], Study]] = {  # for a vocabulary of so many symbols
    "ladder": ladder,
    "residual": residual,
    "norm": norm,
    "feedforward": feedforward,
}


def choose_corpus(data: str | None, tell: Callable[[str], None]) -> str:
    """The text asked for, else the lecture's; where that cannot be had, pydoc, and `tell` hears why."""
    if data is not None:
        return data
    try:
        load_corpus(LECTURES_CORPUS)
    except CorpusError as error:
        reason = str(error).partition(". ")[0]
        tell(f"the text is {FALLBACK}, and nothing is compared with the lecture's numbers: {reason}")
        return FALLBACK
    return LECTURES_CORPUS


def conduct(
    name: str,
    data: str,
    seeds: Sequence[int],
    *,
    jobs: int,
    quick: bool,
    on_start: Callable[[int], None],
    on_done: OnDone,
) -> Report:
    """Make the study called `name` on the text `data`, with each of `seeds`, `jobs` runs at a time.

    `quick`: a tenth of the steps. `on_start` hears how many runs there are, `on_done` of each. Raises
    ConfigError and CorpusError before anything runs.
    """
    for what, value, least in (
        ("seeds", len(seeds), 1),
        ("seed", min(seeds, default=0), 0),
        ("jobs", jobs, 1),
    ):
        if value < least:
            raise ConfigError(f"{what} must be >= {least}: got {value}")
    material = prepare(LECTURE.replace(data=data))
    study = STUDIES[name](material.tokenizer.vocab_size)
    arms = [dataclasses.replace(arm, config=arm.config.replace(data=data)) for arm in study.arms]
    if quick:
        arms = [dataclasses.replace(arm, config=shortened(arm.config)) for arm in arms]
    on_start(len(arms) * len(seeds))
    runs = run_all(arms, seeds, jobs, on_done)
    results = Results(runs)
    is_lectures = data == LECTURES_CORPUS and not quick
    return Report(
        study=study.name,
        title=study.title,
        expected=study.expected,
        verdict=study.judge(results, is_lectures),
        table=study.table(results, is_lectures),
        corpus=data,
        corpus_sha256=material.sha256,
        quick=quick,
        seeds=tuple(seeds),
        arms={arm.name: arm.config.to_dict() for arm in arms},
        runs=tuple(runs),
        versions={
            "gptblock": gptblock.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        svg=draw_curves(f"{study.title}, on {data}", arms, results),
    )
