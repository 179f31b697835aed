"""Messages to devices when a campaign is aborted, and corrections of earlier ones
(`tests/fleet/test_what_devices_have.py` has the rest)."""

import pytest

from aggregator.operator.release_orders import ORDERS, refuse
from aggregator.view.round_record import RoundRecord
from simulation.datasets.windows import FleetData
from tests.aggregator.campaign_cases import SECOND, Campaigns
from tests.aggregator.full_disk import Disk, FullStore
from tests.fleet.recorded import KEPT
from wire import messages as m
from wire.codec import encode
from wire.errors import ConfigError

STRICT = m.Policy(min_windows=99)
FIRST = "run-1"


def test_devices_are_told_to_stop_work_and_no_model_is_offered(fleet: FleetData) -> None:
    bench = Campaigns(fleet)
    bench.answers()
    bench.direct("abort", FIRST)
    finishes = [answer for answer in bench.answers() if isinstance(answer, m.Finish)]
    assert sorted((f.device_id, f.releases) for f in finishes) == [("a", True), ("b", True)]
    bench.check_in("a", "late")
    assert bench.answers() == []


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_about_releases_says_that_a_service_without_them_is_to_be_started_with_them(
    order: str,
) -> None:
    with pytest.raises(ConfigError, match=r"makes no releases.*--release manual"):
        dict.fromkeys(ORDERS, refuse)[order](campaign="run-1", step=0)


class TestSaidToAnother:
    """A campaign that is over and in whose last round `a` and `b` have told which personal models
    they chose; another one that asks the devices now."""

    @pytest.fixture
    def disk(self) -> Disk:
        return Disk()

    @pytest.fixture
    def bench(self, fleet: FleetData, disk: Disk) -> Campaigns:
        bench = Campaigns(fleet, store=FullStore(disk))
        record = RoundRecord(
            round=9,
            phase="evaluating",
            opened_at_s=0.0,
            closed_at_s=1.0,
            evaluated={},
            trained=m.Metrics(),
            groups={},
            bytes_up=0,
            bytes_down=0,
            personal_models={"a": KEPT, "b": KEPT},
        )
        stored = bench.runner.fleet
        bench.store.commit(stored, stored, set(), [], [(FIRST, record)])
        bench.start_second()
        bench.check_in("a", "b")
        return bench

    def say(self, bench: Campaigns, policy: m.Policy | None) -> None:
        bench.clock.now_s += 1
        bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4, policy=policy)))

    def kept(self, bench: Campaigns) -> list[str]:
        """Devices whose personal models are in the last record."""
        return sorted(bench.store.rounds(FIRST)[-1].personal_models)

    def test_a_stricter_policy_reaches_the_one_that_is_over(self, bench: Campaigns) -> None:
        self.say(bench, m.Policy())
        assert self.kept(bench) == ["a", "b"]
        self.say(bench, STRICT)
        assert self.kept(bench) == ["b"]

    @pytest.mark.parametrize("cause", ["operator", "disk", "down"])
    def test_one_that_is_paused_takes_it_in_at_once_or_when_something_can_be_stored(
        self, bench: Campaigns, disk: Disk, cause: str
    ) -> None:
        if cause == "operator":
            bench.direct("pause", FIRST)
            self.say(bench, STRICT)
        elif cause == "down":
            bench.start(2)
            self.say(bench, STRICT)
        else:
            disk.full, boot_id = True, bench.link.boot_id
            self.say(bench, STRICT)
            assert self.kept(bench) == ["a", "b"]
            disk.full = False
            bench.clock.now_s += 6
            bench.tick()
            assert bench.link.boot_id != boot_id, "devices check in again"
            self.say(bench, STRICT)
        assert self.kept(bench) == ["b"]
        assert SECOND in bench.runner.fleet.campaigns
