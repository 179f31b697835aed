"""Buffered campaigns of a service: what is admitted, stored and averaged, and by real agents."""

import math
from typing import ClassVar

import numpy as np
import pytest

from aggregator.core.policies import policy_settings, read_policy
from aggregator.fleet.desired import trained_group
from aggregator.transfer.offered import offered
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.timed_fleet import TimedFleet
from wire import messages as m
from wire.arrays.tensors import OWN_FILES, decode_tensors
from wire.codec import digest
from wire.errors import ConfigError
from wire.links.port import Delivery


def filled(bench: Bench, device_id: str, value: float) -> bytes:
    """Return the update of a device whose change is this value everywhere."""
    bench.tensors = {
        name: np.full_like(array, value) if name.startswith("delta/") else array
        for name, array in bench.tensors.items()
    }
    return bench.payload(device_id)


def mean_of(bench: Bench) -> float:
    """Return the mean of a tensor of the model that device a has."""
    model = bench.campaign.models[trained_group(bench.campaign, "a")]
    tensors, _ = decode_tensors(bench.blobs.get(model), OWN_FILES)
    return float(np.mean(tensors[next(name for name in tensors if name.startswith("shared/"))]))


class TestService:
    @pytest.fixture
    def bench(self, fleet: FleetData) -> Bench:
        """A service in which both devices work, and each update is aggregated."""
        return Bench(
            fleet, settings={"rounds": 20, "buffer": 1, "concurrency": 2, "min_updates": 1}
        )

    def test_the_update_of_an_earlier_round_counts_less_and_its_model_is_kept_until_then(
        self, bench: Bench
    ) -> None:
        for device_id in ("a", "b"):
            bench.verdict(filled(bench, device_id, 0.1), device_id)
        slow = bench.work("b")
        for _ in range(3):
            assert isinstance(bench.verdict(filled(bench, "a", 0.1)), m.Acknowledge)
            assert bench.blobs.get(slow.model)
        assert (slow.round, bench.campaign.round, bench.work("b")) == (3, 6, slow)
        assert slow.model not in bench.campaign.models.values()
        assert slow.model in offered(bench.campaign, bench.runner.fleet)
        bench.answers()
        bench.start(epoch=2)
        plans = [answer for answer in bench.answers() if isinstance(answer, m.Plan)]
        assert {p.device_id: (p.epoch, p.round) for p in plans} == {"a": (2, 6), "b": (2, 3)}
        before, payload = mean_of(bench), filled(bench, "b", 0.8)
        assert bench.verdict(payload, "b") == m.Acknowledge("b", digest(payload))
        assert bench.store.rounds("run-1")[-1].notes["staleness"] == {"b": 3}
        assert mean_of(bench) - before == pytest.approx(0.8 / math.sqrt(4), rel=1e-4)
        assert bench.campaign.round == 7
        assert bench.verdict(payload, "b") == m.Acknowledge("b", digest(payload))
        assert (bench.campaign.round, bench.received) == (7, {}), "it counts once"
        assert slow.model not in offered(bench.campaign, bench.runner.fleet)

    def test_what_is_read_together_counts_in_the_round_that_is_open_then(
        self, bench: Bench
    ) -> None:
        payloads = {device_id: filled(bench, device_id, 0.1) for device_id in "ab"}
        topics = {device_id: bench.topics.device(device_id, "update") for device_id in "ab"}
        bench.runner.handle(*(Delivery(topics[d], payloads[d]) for d in "ab"))
        bench.tick()
        notes = [record.notes.get("staleness") for record in bench.store.rounds("run-1")]
        assert notes == [None, {"b": 1}]
        assert bench.runner.refused == {}


class TestAgents:
    """Real agents, of which one needs twenty times as long as the others."""

    SPEEDS: ClassVar = {"d0": 100.0, "d1": 100.0, "d2": 100.0, "d3": 5.0}

    @pytest.mark.parametrize("algorithm", ["fedavg+fedavgm:beta=0.3", "distfl"])
    def test_fast_devices_do_not_wait_for_a_slow_one_whose_updates_count_all_the_same(
        self, fleet: FleetData, algorithm: str
    ) -> None:
        waiting = TimedFleet(fleet, self.SPEEDS, algorithm, rounds=6)
        waiting.run()
        going = TimedFleet(
            fleet, self.SPEEDS, algorithm, rounds=30, buffer=2, concurrency=4, min_updates=2
        )
        campaign = going.run()
        per_round = fleet.devices["d0"].num_train / 5.0
        assert waiting.clock.now_s >= 6 * per_round
        assert campaign.trained == 30
        assert going.clock.now_s < 30 * per_round / 4, (
            "four rounds and more in the time that the slow device needs for one"
        )
        late = [
            (r.round, r.notes["staleness"])
            for r in going.rounds()
            if "d3" in r.notes.get("staleness", {})
        ]
        assert late, "the slow device's updates are counted"
        asked = [number - staleness["d3"] for number, staleness in late]
        assert len(set(asked)) == len(asked), "each of them once"
        assert min(staleness["d3"] for _, staleness in late) > 5
        assert going.runner.refused.keys() <= {"wrong-round"}
        assert going.runner.refused["wrong-round"] <= 4, (
            "only what was in flight when the evaluation began"
        )


def test_one_grammar_says_a_campaign_what_it_says_a_simulation() -> None:
    assert policy_settings(read_policy("buffered:buffer=5:deadline=60")) == {
        **{"cohort": 0, "over_select": 1.0, "buffer": 5, "concurrency": 0},
        "deadline_s": 60.0,
    }
    assert policy_settings(read_policy("over-select:cohort=20")) == {
        "cohort": 20,
        "over_select": 1.3,
        "buffer": 0,
        "concurrency": 0,
    }
    with pytest.raises(ConfigError, match="wait is for simulations"):
        policy_settings(read_policy("sync:wait=5"))
