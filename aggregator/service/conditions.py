"""State of a running service that is not in its fleet: counters, connection, causes of a stop."""

from dataclasses import dataclass, field

from aggregator.fleet.events import Event, Tick, Updated
from aggregator.fleet.records import Fleet


@dataclass
class ServiceCounters:
    """Counters since the start of the service."""

    events: dict[str, int] = field(default_factory=dict)
    """Number of events of each kind, named as in the event log."""
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    """Bytes of received updates (``up``), and of bundles and models fetched for them (``down``)."""

    stragglers: int = 0
    """Number of assignments that passed their deadline without an update."""

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
    """Condition of a service at one moment."""

    refused: dict[str, int]
    """Number of refused messages, by reason."""
    connected: bool
    """True if the service is connected to the broker."""
    paused: str
    """Reason that no campaign advances; empty while one does."""
    unvouched: str
    """Reason that devices reject what the service signs; empty while they accept it."""
    counted: ServiceCounters
    declined: dict[str, int]
    """Number of declined assignments, by reason."""
    ahead_s: float = 0.0
    """Seconds by which the service's time is ahead of its machine's clock; negative if behind."""
