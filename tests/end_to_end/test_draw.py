"""A service with a real broker draws the devices that a simulation with its seed draws."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from algorithms.composition import read_algorithm
from simulation.local.broker import EmbeddedBroker
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.end_to_end.field import Field
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from tests.support.waiting import wait_until
from wire import messages as m
from wire.codec import encode, encode_update
from wire.identity.signed import Verifier
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.topics import Topics

DEVICES, COHORT, ROUNDS, SEED = 20, 5, 10, 7
TOPICS = Topics("t")


class LightDevice:
    """A device that answers every plan with an update that changes nothing."""

    def __init__(self, device_id: str, address: BrokerAddress, exported: Exported) -> None:
        self.id, self.plans = device_id, list[m.Plan]()
        layout = exported.bundle.manifest.reported("step")
        self._zeros = {name: np.zeros(shape, dtype) for name, dtype, shape in layout}
        self.link = MqttLink(address, f"t.{device_id}")
        self.link.subscribe(TOPICS.device(device_id, "plan"))
        check_in = m.CheckIn(device_id, 40, 12)
        self.link.publish(TOPICS.device(device_id, "check-in"), encode(check_in))

    def answer(self) -> None:
        """Answer the plans that have come."""
        while (event := self.link.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery):
                plan: m.Plan = Verifier("t", ()).open(event.payload, m.Plan, 0.0)
                self.plans.append(plan)
                trained = m.Metrics(40, 40.0, 20) if trains(plan) else m.Metrics()
                own = (plan.round, plan.attempt, self.id, plan.model, 40, 1 if trains(plan) else 0)
                metrics = (m.Metrics(12, 12.0, 6), trained)
                update = m.Update(plan.run_id, plan.epoch, *own, *metrics)
                payload = encode_update(update, self._zeros if trains(plan) else {})
                self.link.publish(TOPICS.device(self.id, "update"), payload)


def trains(plan: m.Plan) -> bool:
    return any(isinstance(verb, m.Train) for verb in plan.verbs)


@contextmanager
def light_devices(ids: list[str], broker: str, exported: Exported) -> Iterator[list[LightDevice]]:
    """Yield devices with connections of their own, which answer until the block ends."""
    address, stopping = BrokerAddress.parse(broker), threading.Event()
    with ExitStack() as opened:
        devices = list[LightDevice]()
        for device_id in ids:
            devices.append(LightDevice(device_id, address, exported))
            opened.enter_context(closing(devices[-1].link))

        def answer() -> None:
            while not stopping.wait(0.01):
                for device in devices:
                    device.answer()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        opened.callback(thread.join)
        opened.callback(stopping.set)
        yield devices


@pytest.mark.full
def test_a_service_asks_the_devices_that_a_simulation_with_its_seed_asks(
    exported: Exported, tmp_path: Path, embedded_broker: EmbeddedBroker
) -> None:
    data, algorithm = synthetic_fleet(DEVICES), read_algorithm("fedavg")
    settings = SimulationSettings(algorithm, ROUNDS, cohort=COHORT, seed=SEED)
    records = [r for r in simulate(data, settings).records if r.phase == "training"]
    drawn = {record.round: sorted(record.evaluated) for record in records}
    field = Field(data, exported, tmp_path, embedded_broker.url)
    try:
        field.serve("--min-devices", str(DEVICES + 1))  # this campaign only waits
        wait_until(lambda: field.get("/run"))
        with light_devices(list(data.devices), embedded_broker.url, exported) as devices:
            wait_until(lambda: field.get("/devices")["total"] == DEVICES)
            numbers = {"rounds": ROUNDS, "cohort": COHORT, "seed": SEED, "min-devices": COHORT}
            options = [f"--{name}={value}" for name, value in numbers.items()]
            words = [str(field.folder / "run"), "drawn", "--bundle", str(exported.folder)]
            command = ["-m", "shoal", "campaign", "start", *words, "--algorithm=fedavg", *options]
            done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            wait_until(lambda: phase(field) == "finished", 120)
            asked = {
                number: sorted(
                    device.id
                    for device in devices
                    for plan in device.plans
                    if trains(plan) and plan.round == number
                )
                for number in range(1, ROUNDS + 1)
            }
        assert asked == drawn
        assert {len(ids) for ids in asked.values()} == {COHORT}
        assert len({tuple(ids) for ids in asked.values()}) > 1
    finally:
        field.stop()


def phase(field: Field) -> str:
    campaigns = {campaign["name"]: campaign for campaign in field.get("/campaigns")}
    return str(campaigns["drawn"]["phase"])
