"""What an engine says of a run while it goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aggregator.core.summary import count_groups


@dataclass(frozen=True)
class RunProgress:
    """The run begins, or a round of training or a preparation is over: rounds of training so far, and the number of groups."""

    trained: int
    groups: int
    at_s: float = 0.0
    """Virtual seconds since the beginning."""


OnProgress = Callable[[RunProgress], None]


def progress_of(trained: int, groups: Mapping[str, str], at_s: float = 0.0) -> RunProgress:
    """The progress after a round that left devices in these groups."""
    return RunProgress(trained, count_groups(groups), at_s)
