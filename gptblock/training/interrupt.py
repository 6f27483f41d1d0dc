"""Ctrl-C as a request: the step at hand is finished and saved before anything ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets; the handlers of before are back afterwards.

    They are back after the first signal already, so that a second one acts at once. Outside the main
    thread, where Python delivers no signals, nothing is installed.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request(_number: int, _frame: FrameType | None) -> None:
        requested.set()
        restore()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, request)
        yield requested
    finally:
        restore()
