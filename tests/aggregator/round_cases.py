"""A run under test, and an update that it may receive."""

from typing import Any

import msgspec

from aggregator.core import state as s
from aggregator.core.round.machine import step
from algorithms.core.contract import Programs
from tests.contracts.store import PROGRAMS, SETTINGS
from wire.codec import digest
from wire.messages import Metrics

MODEL, MEMORY = "1" * 64, "2" * 64
RECEIVED = s.Received(
    blob="a" * 64,
    start="initial",
    num_train=10,
    num_steps=2,
    evaluated=Metrics(4, 1.0, 3),
    trained=Metrics(10, 2.0, 5),
    bytes_up=100,
    bytes_down=50,
)


class Run:
    """A run under test: feeds events, and keeps what followed and the events themselves (`log`)."""

    def __init__(
        self, preparing: bool = False, programs: Programs = PROGRAMS, **settings: Any
    ) -> None:
        chosen = msgspec.structs.replace(SETTINGS, **settings)
        started = s.Started(0.0, chosen, {"initial": MODEL}, MEMORY, programs, preparing)
        self.log: list[s.Event] = [started]
        self.state, _ = step(None, started)

    def feed(self, event: s.Event) -> list[s.Command]:
        self.log.append(event)
        self.state, commands = step(self.state, event)
        return commands

    def replayed(self) -> s.RunState:
        """The state that the log gives, each event written and read again."""
        state: s.RunState | None = None
        for event in self.log:
            state, _ = step(state, msgspec.json.decode(msgspec.json.encode(event), type=s.Event))
        assert state is not None
        return state

    def resume(self, at_s: float, epoch: int = 2) -> list[s.Command]:
        return self.feed(s.Resumed(at_s, epoch))

    def check_in(self, device: str, at_s: float = 1.0, **others: Any) -> list[s.Command]:
        return self.feed(s.DeviceCheckedIn(at_s, device, 10, 4, **others))

    def update(self, device: str, number: int | None = None, at_s: float = 2.0) -> list[s.Command]:
        update = msgspec.structs.replace(
            RECEIVED, blob=digest(f"{device} {number or self.state.round}".encode())
        )
        return self.feed(s.UpdateAdmitted(at_s, device, number or self.state.round, update))

    def aggregated(
        self, at_s: float = 3.0, starts: dict[str, str] | None = None, **others: Any
    ) -> list[s.Command]:
        starts = dict.fromkeys(self.state.devices, "0") | {"": "0"} if starts is None else starts
        others = {"programs": self.state.programs, **others}
        return self.feed(
            s.RoundAggregated(
                at_s, self.state.round, {"initial": MODEL, "0": "3" * 64}, MEMORY, starts, **others
            )
        )


def kinds(commands: list[s.Command]) -> list[str]:
    return [type(c).__name__ for c in commands]
