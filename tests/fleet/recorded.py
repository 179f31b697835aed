"""A world that keeps the records of its rounds."""

from typing import Any

from aggregator.fleet import events as e
from aggregator.fleet.records import AdmittedUpdate, Campaign, Fleet
from aggregator.view.round_record import RoundRecord, records_of
from algorithms.personalisation.kept import PersonalChoice
from tests.fleet.world import Client, World, metrics_of
from wire.messages import CheckIn, Metrics

KEPT = PersonalChoice("fine-tuned + nearest neighbours (weight 0.5)", 12, 0.25, {"general": 0.5})


class Recorded(World):
    """A world that keeps the latest record of each of its rounds."""

    def __init__(self, *device_ids: str, **started: Any) -> None:
        super().__init__()
        self.records: dict[int, RoundRecord] = {}
        self.steps: list[tuple[e.Event, Fleet]] = []
        for device_id in device_ids:
            self.clients[device_id] = Client()
            self.check_in(device_id)
        self.start("run", **{"rounds": 1, "min_devices": 2} | started)

    def feed(self, event: e.Event) -> list[e.Command]:
        before = self.fleet
        commands = super().feed(event)
        self.steps.append((event, self.fleet))
        self.records |= {r.round: r for _, r in records_of(before, [(event, self.fleet)])}
        return commands

    @property
    def campaign(self) -> Campaign:
        return self.fleet.campaigns["run"]

    def answer(self, *device_ids: str, kept: PersonalChoice | None = None) -> None:
        """These devices answer their assignments, with the personal model that they have chosen."""
        self.carry_out()
        for device_id in device_ids:
            client = self.clients[device_id]
            assert client.plan is not None
            self.made += 1
            if client.plan.kind == "personalise":
                client.kept = [*client.kept, client.plan.model][-3:]
            update = AdmittedUpdate(
                blob=f"{device_id}.{self.made}",
                start=client.plan.start,
                num_train=client.num_train,
                num_steps=1,
                norms={"response": 1.0},
                evaluated=metrics_of(0.5),
                trained=Metrics(2, 1.0, 1),
                bytes_up=100,
                bytes_down=50,
                personal_model=kept,
            )
            own: dict[str, Any] = {"device_id": device_id, "serial": client.plan.serial}
            self.feed(e.Updated(at_s=self.now_s, update=update, **own))
        self.carry_out()
        self.ring()

    def say(self, device_id: str, **facts: Any) -> None:
        """A device checks in with these facts."""
        held = tuple(self.clients[device_id].kept)
        usual: dict[str, Any] = {"num_train": 10, "num_test": 0, "personal_models": held}
        told = CheckIn(device_id, **usual | facts)
        self.feed(e.CheckedIn(at_s=self.now_s, device_id=device_id, facts=told))


def over(**started: Any) -> Recorded:
    """A campaign of a, b and c that is over, in which devices choose personal models; c has missed
    its end."""
    world = Recorded("a", "b", "c", **{"keeps": True, "deadline_s": 100.0, **started})
    world.answer("a", "b", "c")
    world.leave("c")
    world.pass_time(40)
    world.answer("a", "b", kept=KEPT)
    world.pass_time(100)
    assert world.campaign.phase == "finished"
    return world
