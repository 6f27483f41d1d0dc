"""How commands speak: the product on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gptblock.runtime.session import Provider


@functools.cache
def stdout() -> Console:
    """A console on stdout, for tables; plain text where stdout is no terminal. Made when first needed."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)


@functools.cache
def stderr() -> Console:
    """A console on stderr, for a live display."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def is_first_process() -> bool:
    """Whether this process speaks for its job: torchrun numbers those that it starts."""
    return os.environ.get("RANK", "0") == "0"


def write(text: str) -> None:
    """Text on stdout, at once. A character that the console's encoding lacks is escaped, not lost."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def printable(text: str, keep: str = "") -> str:
    """`text` with escapes for what would steer a terminal, and for what stdout's encoding lacks."""
    shown = "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def tell_provider(tell: Callable[[str], None], provider: Provider, **of_cuda: bool) -> None:
    """What a command runs on, and why; and that flags of CUDA's, where they were given, need it."""
    tell(f"provider: {provider}")
    for name, is_on in of_cuda.items():
        if is_on and provider.name == "cpu":
            tell(f"--{name.replace('_', '-')} is CUDA's, and does nothing on the CPU")


def show(renderable: RenderableType) -> None:
    """A table on stdout."""
    with stdout().capture() as text:
        stdout().print(renderable)
    write(text.get())


def discard(stream: TextIO) -> None:
    """From now on, what is written to `stream`, or still in its buffer, goes nowhere."""
    with Path(os.devnull).open("wb") as nowhere, contextlib.suppress(io.UnsupportedOperation):
        os.dup2(nowhere.fileno(), stream.fileno())  # unsupported: a stream in memory, which never fails


def write_json(value: object) -> None:
    """One JSON object on stdout, in ASCII."""
    import json

    write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def say(message: str) -> None:
    """One line of news on stderr. Where nobody reads it any more, the command goes on without."""
    if sys.stderr is None:  # closed (2>&-), for which print would take stdout
        return
    try:
        print(message, file=sys.stderr, flush=True)  # not rich's, which takes longer to import than to run
    except BrokenPipeError:
        discard(sys.stderr)


def ignore(message: str) -> None:
    """What --quiet does with a line of news."""


def complain(message: str) -> None:
    """One error on stderr."""
    say(f"error: {message}")
