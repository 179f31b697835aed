"""What there is to say of a service beside its run."""

from dataclasses import dataclass, field

from aggregator.core.state import Event, RunState, UpdateAdmitted


@dataclass
class Counted:
    """What has happened since the service was started."""

    events: dict[str, int] = field(default_factory=dict)
    """By kind of event, as in the run's log."""
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    """Of updates that came, and of bundles and models that went to the devices that sent them."""

    stragglers: int = 0
    """Devices that a round had asked, and that had neither answered nor declined when it was
    closed."""
    _closed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def observe(self, state: RunState, event: Event) -> None:
        """Count an event."""
        if state.phase == "aggregating" and (
            attempt := (state.round, state.attempt)
        ) != self._closed.get(state.settings.run_id):
            self._closed[state.settings.run_id] = attempt
            self.stragglers += len(state.cohort) - len(state.received)
        kind = str(event.__struct_config__.tag)
        self.events[kind] = self.events.get(kind, 0) + 1
        if isinstance(event, UpdateAdmitted):
            self.bytes["up"] += event.update.bytes_up
            self.bytes["down"] += event.update.bytes_down


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
