"""The bytes of a day: how they are counted, and what the rule `max_bytes_a_day` does to an
update."""

from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client.agent.traffic import HOUR_S, Traffic
from edge_client.core.backoff import RESEND_S
from edge_client.storage.state import TRAFFIC, UPDATE, DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device
from tests.support.bundles import Exported
from tests.support.known import known
from wire import messages as m


class TestTraffic:
    def counted(self, folder: Path, passed_s: float) -> int:
        """Return the rest of 1000 bytes that came at a quarter to the hour."""
        now_s = 100 * HOUR_S + 2700.0
        traffic = Traffic(DeviceState(folder), lambda: now_s)
        traffic.add(1000)
        now_s += passed_s
        return traffic.last_day

    @pytest.mark.parametrize("hours", [0.0, 1.0, 23.75, 24.0])
    def test_bytes_of_the_last_24_hours_count(self, tmp_path: Path, hours: float) -> None:
        assert self.counted(tmp_path, hours * HOUR_S) == 1000

    def test_bytes_of_25_hours_ago_do_not(self, tmp_path: Path) -> None:
        assert self.counted(tmp_path, 25 * HOUR_S) == 0

    def test_bytes_count_also_if_the_clock_was_set_back(self, tmp_path: Path) -> None:
        assert self.counted(tmp_path, -50 * HOUR_S) == 1000

    @pytest.mark.parametrize(
        ("most", "more", "exceeds"),
        [(1000, 0, False), (1000, 1, True), (999, 0, True), (None, 10**9, False)],
    )
    def test_a_limit_is_exceeded_by_what_is_above_it(
        self, tmp_path: Path, most: int | None, more: int, exceeds: bool
    ) -> None:
        traffic = Traffic(DeviceState(tmp_path), lambda: 0.0)
        traffic.add(1000)
        assert bool(traffic.exceeds(most, more)) == exceeds


class TestUpdate:
    @pytest.fixture
    def make(
        self, fleet: FleetData, exported: Exported, tmp_path: Path
    ) -> Callable[[str, int], Device]:
        """A device that was sent a plan, and may have so many bytes a day."""

        def worked(name: str, most: int) -> Device:
            device = Device(fleet, exported, tmp_path / name, policy=m.Policy(max_bytes_a_day=most))
            device.offer()
            device.send_plan()
            device.turn()
            return device

        return worked

    @pytest.fixture
    def sizes(self, make: Callable[[str, int], Device]) -> tuple[int, int]:
        """The bytes of a round until its update is sent, and those of the update."""
        device = make("unlimited", 10**9)
        (update,) = device.sent("update")
        return sum(
            known(DeviceState(device.folder).document(TRAFFIC, dict[int, int])).values()
        ), len(update)

    def test_one_that_would_exceed_the_day_is_declined(
        self, make: Callable[[str, int], Device], sizes: tuple[int, int]
    ) -> None:
        device = make("limited", sizes[0] - sizes[1] // 2)
        (decline,) = device.declines()
        assert (decline.reason, decline.detail.partition(":")[0]) == ("policy", "max_bytes_a_day")
        assert DeviceState(device.folder).files.read(UPDATE) is None

    def test_one_that_is_pending_waits_until_the_day_permits_it(
        self, make: Callable[[str, int], Device], sizes: tuple[int, int]
    ) -> None:
        device = make("limited", sizes[0] + sizes[1] // 2)
        (update,) = device.sent("update")
        device.now_s += RESEND_S[0]
        device.turn()
        assert device.sent("update") == []
        device.start()
        device.turn()
        assert device.sent("update") == []
        assert (device.agent.session.stage, DeviceState(device.folder).files.read(UPDATE)) == (
            "pending",
            update,
        )
        device.now_s += 25 * HOUR_S
        device.turn()
        assert device.sent("update") == [update]
