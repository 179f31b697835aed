"""What a message from a device means to the service."""

from dataclasses import dataclass, field

from aggregator.core.state import Event, RunState
from wire.messages import Fetch, InUse, Reply, Want


@dataclass
class Reading:
    """What follows from a message: events, in order, replies, an update's bytes to keep, a blob
    that a device asks for, a proof."""

    device_id: str = ""
    about: str = ""
    """The kind of the message's topic."""
    digest: str = ""
    """Of an update, the digest of its bytes."""
    events: list[Event] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    update: bytes | None = None
    fetch: Fetch | None = None
    want: Want | None = None
    """Which pieces of its update a device is to send next."""
    gone: bool = False
    """Whether the device says that it is not there."""
    in_use: InUse | None = None
    """What a device says of the release that it uses."""
    proof: str = ""
    """A signed plan of a greater epoch, which a device showed."""
    campaign: str = ""
    """The name of the campaign that this is for; empty where there is none."""
    state: RunState | None = None
    """That campaign's state."""

    def is_for(self, found: "Found") -> None:
        """Note the campaign that a device or a run belongs to."""
        self.campaign, self.state = found or ("", None)


Found = tuple[str, RunState] | None
"""The name and the state of a campaign, if there is one."""
