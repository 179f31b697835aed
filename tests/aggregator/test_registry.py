"""The registry: what is known of a device after what it says and what operators order, and what
that costs in a fleet of ten thousand."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import registry as r
from aggregator.core.registry import GroupChange, regrouped
from aggregator.core.state import Placed
from aggregator.service.devices import Devices
from wire.errors import ConfigError
from wire.messages import CheckIn, Decline


class Known(Devices):
    """A registry in memory, with a clock that is set."""

    def __init__(self) -> None:
        self.now_s = 1.0
        super().__init__(None, lambda: self.now_s)

    def told(self, device_id: str, at_s: float = 1.0, **said: Any) -> None:
        self.now_s = at_s
        self.on_check_in(CheckIn(device_id, 10, 4, **said))


@pytest.fixture
def known() -> Known:
    return Known()


def test_an_entry_holds_what_the_device_said_last_and_when_it_was_seen(known: Known) -> None:
    known.told("a", 5.0, battery_percent=50)
    known.told("a", 7.0, battery_percent=40)
    known.now_s = 9.0
    known.on_heard("a")
    entry = known.entry("a")
    assert entry.said is not None
    assert (entry.said.battery_percent, entry.first_seen_s, entry.last_seen_s, entry.online) == (
        40,
        5.0,
        9.0,
        True,
    )


def test_a_device_may_be_tagged_and_banned_before_it_was_ever_here(known: Known) -> None:
    known.tag(["a"], ["b", "a"])
    known.now_s = 2.0
    known.ban("a", "stolen")
    known.now_s = 3.0
    known.ban("a", "still")
    known.tag(["a"], ["b"])
    assert known.entry("a") == r.Entry(tags=("a", "b"), ban=r.Ban(2.0, "still"))


def test_what_says_nothing_of_an_unknown_device_makes_no_entry(known: Known) -> None:
    known.on_heard("x")
    known.forget("x")
    known.untag(["x"], ["t"])
    known.withdraw("x")
    with pytest.raises(ConfigError, match="it is not banned"):
        known.unban("x")
    assert not known.entries


def grouped(entry: r.Entry, campaign: str, number: int, group: str) -> r.Entry:
    return regrouped(entry, GroupChange(float(number), campaign, number, group))


def test_a_change_of_group_is_remembered_and_the_same_group_is_none() -> None:
    entry = r.Entry()
    for n in range(30):
        entry = grouped(entry, "run-1", n, str(n // 2))
    assert [change.group for change in entry.groups] == [str(n) for n in range(7, 15)]
    assert len(entry.groups) == r.HISTORY
    assert grouped(entry, "run-2", 99, "14").groups[-1].campaign == "run-2"


def test_a_device_that_its_campaign_no_longer_places_is_in_no_group() -> None:
    placed = Placed("1", 0.8, 5)
    entry = regrouped(r.Entry(), GroupChange(1.0, "run-1", 1, "1"), placed)
    assert (entry.group, entry.placed) == ("1", placed)
    assert grouped(entry, "run-2", 1, "") is entry, "another campaign has no say"
    later = grouped(entry, "run-1", 2, "")
    assert (later.group, later.placed) == ("", None)
    back = grouped(later, "run-1", 3, "1")
    assert (back.group, [change.round for change in back.groups]) == ("1", [1, 3])


def test_of_a_forgotten_device_only_a_ban_stays(known: Known) -> None:
    known.told("a")
    known.tag(["a"], ["t"])
    known.forget("a")
    assert "a" not in known.entries
    known.told("a")
    known.now_s = 2.0
    known.ban("a", "x")
    known.forget("a")
    assert known.entry("a") == r.Entry(ban=r.Ban(2.0, "x"))


ACTS: tuple[Callable[[Known, str], object], ...] = (
    lambda known, d: known.told(d),
    lambda known, d: known.on_heard(d),
    lambda known, d: known.tag([d], ["t"]),
    lambda known, d: known.untag([d], ["t"]),
    lambda known, d: known.ban(d, "x"),
    lambda known, d: known.forget(d),
    lambda known, d: known.change(d, campaign="run"),
    lambda known, d: known.on_decline(Decline("r", 1, 1, 0, d, "policy", ""), "run", ""),
)
ids = st.sampled_from("abc")


@given(st.lists(st.tuples(st.sampled_from(ACTS), ids), max_size=30), ids)
def test_what_becomes_of_other_devices_does_not_touch_an_entry(
    history: list[tuple[Callable[[Known, str], object], str]], device_id: str
) -> None:
    every, own = Known(), Known()
    for act, of in history:
        act(every, of)
        if of == device_id:
            act(own, of)
    assert every.entries.get(device_id) == own.entries.get(device_id)


def test_a_device_of_ten_thousand_costs_what_one_of_a_thousand_does() -> None:
    def held(count: int) -> int:
        tracemalloc.start()
        known = Known()
        for i in range(count):
            known.told(f"d{i:05d}", client="shoal 1.2.3", hardware="Pi 4", battery_percent=50.0)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(known.entries) == count
        return size

    assert held(10_000) < 1.2 * 10 * held(1_000)
