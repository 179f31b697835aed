"""What there is to say of a service beside its run."""

from dataclasses import dataclass, field

from aggregator.fleet.events import Event, Tick, Updated
from aggregator.fleet.records import Fleet


@dataclass
class Counted:
    """What has happened since the service was started."""

    events: dict[str, int] = field(default_factory=dict)
    """By kind of event, as in the run's log."""
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    """Of updates that came, and of bundles and models that went to the devices that sent them."""

    stragglers: int = 0
    """Number of assignments that nobody had answered by their deadline."""

    def observe(self, fleet: Fleet, event: Event) -> None:
        """Count an event."""
        kind = str(event.__struct_config__.tag)
        self.events[kind] = self.events.get(kind, 0) + 1
        if isinstance(event, Updated):
            self.bytes["up"] += event.update.bytes_up
            self.bytes["down"] += event.update.bytes_down
        if isinstance(event, Tick):
            late = (fleet.devices.get(key) for key in event.keys)
            lapsed = [d.assignment for d in late if d is not None and d.assignment is not None]
            self.stragglers += sum(
                work.lapsed and work.deadline_s <= event.at_s < work.deadline_s + 1
                for work in lapsed
            )


@dataclass(frozen=True)
class Conditions:
    """How a service is now."""

    refused: dict[str, int]
    """How often something that arrived was refused, by reason."""
    connected: bool
    """Whether there is a connection to the broker."""
    paused: str
    """Why nothing goes on; empty while it does."""
    unvouched: str
    """Why devices believe nothing that the service signs; empty while they do."""
    counted: Counted
    declined: dict[str, int]
    """Plans that devices declined, by reason."""
