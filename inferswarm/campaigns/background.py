"""Failures that end no cell: exceptions of threads, of asyncio tasks, and those that nobody could raise.

A notebook runs on after them as if nothing had happened. `watch` has the interpreter tell of each, for the rest of
the process; what was there before is called too. Not covered: exceptions that code catches, and processes.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from inferswarm.campaigns.records import BackgroundFailure

Told = Callable[[BackgroundFailure], None]
MAX_TEXT = 500
"""Longest text that is kept of one error: enough for a message, and no traceback with paths of this machine."""


def watch(tell: Told) -> None:
    """Call `tell` for every failure in the background from here on, from whichever thread it happens in."""
    _watch_threads(tell)
    _watch_unraisable(tell)
    _watch_loops(tell)


def unasked_failures() -> tuple[BackgroundFailure, ...]:
    """Return the failures of tasks that are still held somewhere, and whose exception nobody has looked at."""
    gc.collect()  # those that nobody holds tell of themselves when they go
    found = []
    for thing in gc.get_objects():
        # By type(): isinstance() asks the object itself, and some libraries' objects import things when asked.
        if issubclass(type(thing), asyncio.Future) and thing.done() and thing._log_traceback:
            error = thing.exception()
            if error is not None:
                found.append(BackgroundFailure("task", _text(error)))
    return tuple(found)


def _watch_threads(tell: Told) -> None:
    earlier = threading.excepthook

    def on_thread(arguments: threading.ExceptHookArgs) -> None:
        name = arguments.thread.name if arguments.thread is not None else "?"
        tell(BackgroundFailure(f"thread {name}", _text(arguments.exc_value or arguments.exc_type)))
        earlier(arguments)

    threading.excepthook = on_thread


def _watch_unraisable(tell: Told) -> None:
    earlier = sys.unraisablehook

    def on_unraisable(arguments: sys.UnraisableHookArgs) -> None:
        tell(BackgroundFailure("unraisable", _text(arguments.exc_value or arguments.exc_type)))
        earlier(arguments)

    sys.unraisablehook = on_unraisable


def _watch_loops(tell: Told) -> None:
    """Watch every event loop, also those that are made later, by the one method through which all of them report."""
    earlier = asyncio.base_events.BaseEventLoop.call_exception_handler

    def on_loop(self: asyncio.base_events.BaseEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        tell(BackgroundFailure("task", _text(error) if error is not None else str(context.get("message"))[:MAX_TEXT]))
        earlier(self, context)

    asyncio.base_events.BaseEventLoop.call_exception_handler = on_loop  # type: ignore[method-assign]


def _text(error: BaseException | type[BaseException]) -> str:
    """Return an exception as one line of bounded length."""
    if isinstance(error, type):
        return error.__name__
    return f"{type(error).__name__}: {error}"[:MAX_TEXT]
