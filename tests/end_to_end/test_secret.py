"""Secret mode with real processes and a real broker: who is killed, and who learns what."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from aggregator.fleet.plan import round_seed
from aggregator.fleet.records import Campaign
from algorithms.core.keys import NEWCOMER
from helper.storage import HelperFolder
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from simulation.local.secret import carried_out, eavesdrop, holds, needles
from tests.end_to_end.secret_field import SecretField, files_of
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from tests.support.waiting import wait_until


class Secret(SecretField):
    """A service with six devices."""

    def finds(self, campaign: Campaign, payloads: list[bytes]) -> tuple[bool, bool]:
        """True for each of the last model and the first device's change that is in these bytes."""
        models = {key: self.model(campaign, key) for key in campaign.version.models}
        device_id, programs = min(self.data.devices), campaign.version.programs
        seed = round_seed(campaign.settings.seed, 1)
        windows, start = self.data.devices[device_id], models[NEWCOMER]
        result = carried_out(self.exported.bundle, start, windows, device_id, programs[""], seed)
        last = models[campaign.version.newcomers]
        return holds(payloads, needles(last)), holds(payloads, needles(result.tensors))


@pytest.fixture
def secret(exported: Exported, tmp_path: Path, embedded_broker: EmbeddedBroker) -> Iterator[Secret]:
    data: FleetData = synthetic_fleet(num_devices=6, num_windows=120)
    field = Secret(data, exported, tmp_path, embedded_broker.url, epochs=2)
    yield field
    field.stop()


@pytest.mark.full
def test_the_change_of_a_device_is_everywhere_in_clear_mode_and_nowhere_in_secret_mode(
    secret: Secret,
) -> None:
    for is_secret in (False, True):
        with ExitStack() as stack:
            if is_secret:
                secret.folder = secret.folder / "secret"
                stack.enter_context(secret.begin())
            payloads = stack.enter_context(eavesdrop(secret.broker_url))
            stack.enter_context(secret.edges())
            secret.serve_rounds()
            campaign = secret.finish()
            last = needles(secret.model(campaign, campaign.version.newcomers))
            wait_until(partial(holds, payloads, last), 60.0)
            secret.stop()
            secret.serving.clear()
        carried = secret.finds(campaign, payloads)
        stored = secret.finds(campaign, files_of(secret.folder / "run"))
        assert (carried[0], stored[0]) == (True, True), "the model is for everybody"
        assert carried[1] == (not is_secret)
        if is_secret:
            assert not stored[1]
            helpers = files_of(secret.folder / "parties" / "helpers")
            assert secret.finds(campaign, helpers) == (False, False)
            assert all(not u.num_train and not u.norms for u in campaign.updates.values())


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2])
def test_it_ends_whoever_is_killed(secret: Secret, seed: int) -> None:
    rng, parties = random.Random(seed), secret.begin()
    with parties, secret.edges() as edges:
        secret.serve_rounds()
        secret.wait(lambda run: run["phase"] == "training")
        for _ in range(6):
            time.sleep(rng.uniform(0.2, 1.5))
            victim = rng.choice(["service", "helper", "device"])
            if victim == "service":
                secret.serving[-1].kill()
                secret.serving[-1].wait()
                secret.serve_rounds()
            elif victim == "helper":
                name = rng.choice(parties.names)
                parties.processes[name].kill()
                parties.processes[name].wait()
                parties.start(name)
            else:
                device_id = rng.choice(sorted(secret.data.devices))
                edges.processes[device_id].kill()
                edges.processes[device_id].wait()
                edges.start(device_id)
        campaign = secret.finish()
    assert campaign.trained == secret.rounds
    assert campaign.cells == (tuple(sorted(secret.data.devices)),)
    for name in parties.names:
        ledger = HelperFolder(parties.folder_of(name)).ledger
        assert ledger.parts == {frozenset(secret.data.devices)}
        assert len(ledger.sets) >= secret.rounds
