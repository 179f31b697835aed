"""Events that are saved together, and what follows once they are."""

from dataclasses import dataclass, field

from aggregator.core.record import RoundRecord, record_of
from aggregator.core.round.machine import step
from aggregator.core.state import Command, Event, RunState
from wire.messages import Reply


@dataclass
class Group:
    """What came between two writes. `state` is the run's state after the events so far."""

    state: RunState
    steps: list[tuple[Event, RunState]] = field(default_factory=list)
    """The events, and the state after each."""
    records: list[RoundRecord] = field(default_factory=list)
    """Of the rounds that were closed."""
    commands: list[Command | Reply] = field(default_factory=list)
    """What follows, in order: a reply to a later message must not overtake a plan."""
    whole: bool = False
    """Whether the state is to be saved as a whole, so that the log of events before it is
    deleted."""
    updates: list[tuple[str, bytes]] = field(default_factory=list)
    """The device and the bytes of each update among the events."""

    def add(self, event: Event) -> None:
        """Take in one event."""
        state, commands = step(self.state, event)
        record = record_of(self.state, event, state)
        self.state = state
        self.steps.append((event, state))
        if record is not None:
            self.records = [
                *(other for other in self.records if other.round != record.round),
                record,
            ]
        self.commands += commands
