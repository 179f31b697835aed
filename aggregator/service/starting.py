"""What a service that starts is doing, for its log and its health."""

import logging

from aggregator.core.state import RunState

log = logging.getLogger("shoal.aggregator")


class Starting:
    """The steps of a start, of which each is told when it begins."""

    def __init__(self) -> None:
        self.doing = ""

    def begins(self, doing: str) -> None:
        """Tell what is done from now on."""
        self.doing = doing
        log.info("starting: %s", doing)


def opening_of(name: str, state: RunState | None) -> str:
    """What it is to open a campaign that stands so; None: it has not begun."""
    if state is None or state.phase != "aggregating":
        return f"opens campaign {name}"
    return (
        f"opens campaign {name}, and aggregates the {len(state.received)} updates of its round "
        f"{state.round}"
    )
