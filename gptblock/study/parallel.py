"""All runs of a study, in several processes of one thread each; Ctrl-C ends them all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gptblock.errors import GptblockError
from gptblock.study.run import Arm, Run, train_arm
from gptblock.training.material import Material, prepare

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

OnDone = Callable[[Run, int, int], None]  # the run, how many are done, of how many


def run_all(arms: Sequence[Arm], seeds: Sequence[int], jobs: int, on_done: OnDone) -> list[Run]:
    """Train every arm with every seed, `jobs` at a time; seed by seed, in the order of the arms.

    All arms have the same text and block_size. The runs are the same whatever `jobs` is. An error of one,
    or Ctrl-C, ends the others.
    """
    tasks = [(arm, seed) for seed in seeds for arm in arms]
    jobs = min(jobs, len(tasks))
    if jobs == 1:
        material = prepare(arms[0].config)
        runs = []
        for arm, seed in tasks:
            runs.append(train_arm(arm, seed, material))
            on_done(runs[-1], len(runs), len(tasks))
        return runs
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    stop = context.Event()
    with ProcessPoolExecutor(jobs, context, _begin, (arms[0], stop)) as pool:
        try:
            with _ctrl_c_ignored():  # which the workers inherit: it is this process that stops them
                futures = [pool.submit(_run, arm, seed) for arm, seed in tasks]
            for done, future in enumerate(as_completed(futures), start=1):
                on_done(future.result(), done, len(tasks))
        except BrokenProcessPool:
            raise GptblockError(
                "a run was ended from outside (did memory run out?), and what the others did is not kept: "
                "start again, with fewer --jobs"
            ) from None
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in futures]


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # which alone may say so
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _StoppedError(Exception):
    """Ends a run in a worker."""


class _Worker:
    """What a worker process holds."""

    material: Material
    stop: Event


def _begin(arm: Arm, stop: Event) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Worker.material, _Worker.stop = prepare(arm.config), stop


def _end_with_parent() -> None:
    """A parent that is killed cannot say so."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _run(arm: Arm, seed: int) -> Run:
    return train_arm(arm, seed, _Worker.material, _stop_if_asked)


def _stop_if_asked(_step: int) -> None:
    if _Worker.stop.is_set():
        raise _StoppedError
