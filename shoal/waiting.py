"""Progress of a command for people.

A terminal shows a line with the elapsed time and, if it can be known, the time left. Elsewhere,
such as in a log, the first line comes at once and further lines only from steps that take long.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SAID_AFTER_S = 2.0
"""Seconds after which a log gets further lines."""


@contextmanager
def working(console: Console) -> Iterator[Callable[..., None]]:
    """Yield a function that shows the current step.

    The function takes the step's text. It shows a progress bar if it also gets the number of
    finished rounds, their total, and a text to show beside the bar.
    """
    with ExitStack() as stack:
        shown: tuple[str, int] | None = None
        tell: Any = None

        def say(about: str, done: int = 0, total: int = 0, beside: str = "") -> None:
            nonlocal shown, tell
            wanted = (about, total) if total else ("", 0)
            if wanted != shown:
                stack.close()
                tell = stack.enter_context(
                    rounds(console, about, total) if total else steps(console, about)
                )
                shown = wanted
            elif not total:
                tell(about)
            if total:
                tell(done, beside)

        yield say


@contextmanager
def steps(
    console: Console, first: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[str], None]]:
    """Show `first`, and yield a function that shows the next step.

    The number of steps is not known, so no time left is shown.
    """
    began_s = clock()
    if console.is_terminal:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as shown:
            task = shown.add_task(first, total=None)
            yield lambda text: shown.update(task, description=text)
        return

    console.print(first, soft_wrap=True)

    def say(text: str) -> None:
        if clock() - began_s >= SAID_AFTER_S:
            console.print(f"{clock() - began_s:.0f} s: {text}", soft_wrap=True)

    yield say


@contextmanager
def rounds(
    console: Console, about: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, str], None]]:
    """Show how many of `total` rounds are over, with the time so far and the time left.

    The function that is yielded takes the number of rounds and a text to show beside it. Its first
    call may report rounds from before an interruption; they do not count for the time left.
    """
    began_s = said_s = clock()
    before: int | None = None
    last: int | None = None
    spans = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("left"))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *spans,
        TextColumn("{task.fields[say]}"),
    )
    if console.is_terminal:
        with Progress(*columns, console=console) as shown:
            task = shown.add_task(about, total=total, say="beginning")
            yield lambda done, say: shown.update(task, completed=done, say=say)
        return

    console.print(f"{about}: {total} round{'s' * (total != 1)}", soft_wrap=True)

    def tell(done: int, say: str) -> None:
        nonlocal said_s, before, last
        before, now_s = done if before is None else before, clock()
        last = before if last is None else last
        if done > last and (now_s - said_s >= SAID_AFTER_S or done == total):
            said_s, last = now_s, done
            left_s = (now_s - began_s) * (total - done) / (done - before)
            console.print(
                f"{about}: round {done} of {total}, {now_s - began_s:.0f} s, {left_s:.0f} s left; "
                f"{say}",
                soft_wrap=True,
            )

    yield tell
