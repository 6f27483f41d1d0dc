"""The display of a training run, on stderr: live on a terminal, lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from gptblock.cli.console import printable, say, stderr

if TYPE_CHECKING:
    from rich.progress import Task

    from gptblock.training import Evaluated, Event, Reading, Started

_STAGES = {"reading": "reading", "learning": "learning tokens from", "encoding": "encoding"}
_NEWS = 0.25  # of a stage, after which a line tells of it where there is no terminal


class _Speed(ProgressColumn):
    """Tokens per second, evaluations included."""

    def __init__(self, tokens_per_step: int) -> None:
        super().__init__()
        self._tokens_per_step = tokens_per_step

    def render(self, task: Task) -> Text:
        return Text(f"{(task.speed or 0) * self._tokens_per_step:,.0f} tokens/s")


class TrainingDisplay:
    """Shows the events that it is called with. Use as a context, so that the terminal is left in order."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._stage = ""
        self._told = 0.0  # share of the stage

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def __call__(self, event: Event) -> None:
        from gptblock.training import Evaluated, Noted, Reading, Sampled, Started, Stepped, Stopping

        match event:
            case Reading():
                self._read(event)
            case Started():
                self._start(event)
            case Stepped() if self._progress:
                self._progress.update(
                    self._progress.task_ids[0],
                    completed=event.step,
                    loss=f"{event.loss:.4f}",
                )
            case Evaluated():
                self._show(event)
            case Noted():
                say(event.text)
            case Sampled():
                text = printable(event.text, keep="\n")
                say(f"step {event.step} writes:\n{text}\n")
            case Stopping():
                say(f"stopping at step {event.step}: saving; once more ends it at once")

    def _read(self, event: Reading) -> None:
        """A bar for each stage on a terminal, a line now and then elsewhere."""
        what = f"{_STAGES[event.stage]} {printable(event.data)}"
        if event.stage != self._stage:
            self._stop()
            self._stage, self._told = event.stage, 0.0
            say(f"{what} ({decimal(event.size)})")
            if stderr().is_terminal:
                columns = (TextColumn("{task.description}"), BarColumn(bar_width=10), TaskProgressColumn())
                self._progress = Progress(*columns, TimeRemainingColumn(), console=stderr(), transient=True)
                self._progress.add_task(_STAGES[event.stage], total=1.0)
                self._progress.start()
        if self._progress:
            self._progress.update(self._progress.task_ids[0], completed=event.share)
        elif self._told + _NEWS <= event.share < 1:
            self._told = event.share // _NEWS * _NEWS
            say(f"{what}: {event.share:.0%}")

    def _start(self, event: Started) -> None:
        self._stop()
        say(
            f"training {event.parameters:,} parameters on {event.tokens:,} tokens "
            f"({event.vocab_size} symbols), on {event.device}, into {event.run}"
        )
        if event.step:
            say(f"going on from step {event.step} of {event.max_iters}")
        if not stderr().is_terminal:
            return
        self._progress = Progress(
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  val {task.fields[val]}"),
            _Speed(event.tokens_per_step),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=stderr(),
        )
        self._progress.add_task("train", total=event.stop_at, completed=event.step, loss="-", val="-")
        self._progress.start()

    def _show(self, event: Evaluated) -> None:
        now = event.measurement
        if self._progress:
            self._progress.update(self._progress.task_ids[0], val=f"{now.val_loss:.4f}")
        speed = f", {now.tokens_per_second:,.0f} tokens/s" if now.tokens_per_second else ""
        say(
            f"step {now.step}: loss {now.train_loss:.4f}, validation {now.val_loss:.4f}"
            f"{' (best)' if event.is_best else ''}, lr {now.lr:.2e}{speed}"
        )
