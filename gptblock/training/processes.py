"""The processes that train one model together: torchrun starts them, each takes its share of every batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gptblock.errors import GptblockError, LostProcessError

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those of its job: `rank` 0 to `size` - 1. The first alone writes and reports."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This process's part of a batch (B, ...), which all have drawn alike: about B / size rows."""
        return batch.tensor_split(self.size)[self.rank] if self.size > 1 else batch

    def largest_share(self, rows: int) -> int:
        """How many of so many rows the process has that has most."""
        return -(-rows // self.size)

    def sum(self, value: Tensor) -> Tensor:
        """The sum of all processes' values, which takes their place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.sum(torch.tensor(int(flag), device=_device())).item()) if self.size > 1 else flag

    def by_first(self, act: Callable[[], T]) -> T:
        """What the first process gets from `act`, or the error that it raises, in all of them."""
        if self.size == 1:
            return act()
        outcome: list[tuple[T | None, GptblockError | None]] = [(None, None)]
        if self.is_first:
            try:
                outcome = [(act(), None)]
            except GptblockError as error:
                outcome = [(None, error)]
        dist.broadcast_object_list(outcome)
        result, problem = outcome[0]
        if problem:
            problem.is_told = not self.is_first
            raise problem
        return result  # type: ignore[return-value]

    def in_turn(self, act: Callable[[], T]) -> T:
        """What each gets from `act`, which the others call once the first is done: it may leave a cache."""
        if not self.is_first:
            self.by_first(lambda: None)
            return act()
        found: list[T] = []
        self.by_first(lambda: found.append(act()))
        return found[0]


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """This process in its job, if torchrun started it in one; else alone.

    Raises LostProcessError, inside, when another process of the job ends before its time.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if size == 1:
        yield Processes()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(rank, size)
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise LostProcessError(
            f"another of this job's {size} processes ended, and process {rank} cannot go on without it: see "
            f"what it said. The latest checkpoint is whole: --resume goes on from it, in as many processes "
            f"as you like"
        ) from None
    finally:
        dist.destroy_process_group()


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _is_lost(error: RuntimeError) -> bool:
    """Whether a collective failed: torch has a class for NCCL's errors, and of gloo's only the words."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection" in str(error)
