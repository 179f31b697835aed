"""A service with several campaigns."""

from collections.abc import Callable
from typing import Any

import msgspec

from aggregator.core.ports import Store
from aggregator.service.campaign import Campaign
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import encode, encode_update


class Campaigns(Bench):
    """A bench on which a second campaign can be started."""

    def second(
        self,
        takes: Callable[[str], bool] = lambda _: True,
        store: Store | None = None,
        **given: Any,
    ) -> Campaign:
        settings = msgspec.structs.replace(self.state.settings, run_id="r2", name="run-2")
        return self.runner.add(
            settings, *self.parts, store or MemoryStore(), MemoryBlobs(), takes=takes, **given
        )

    def plans(self) -> list[tuple[str, str]]:
        return [
            (plan.run_id, plan.device_id) for plan in self.answers() if isinstance(plan, m.Plan)
        ]

    def of(self, campaign: Campaign, device_id: str) -> bytes:
        """An update of a device for the open round of a campaign."""
        state = campaign.state
        update = msgspec.structs.replace(
            self.update, run_id=state.settings.run_id, device_id=device_id, round=state.round
        )
        return encode_update(
            msgspec.structs.replace(update, model=state.models[state.cohort[device_id]]),
            self.tensors,
        )

    def check_in(self, *device_ids: str) -> None:
        for device_id in device_ids:
            self.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))


def online(campaign: Campaign) -> list[str]:
    return sorted(d for d, device in campaign.state.devices.items() if device.online)
