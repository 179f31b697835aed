"""The registry as a machine: what events do to entries, and what it costs in a fleet of ten
thousand."""

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import registry as r
from aggregator.core.state import Placed
from wire.messages import CheckIn


def after(*events: r.Event) -> r.Registry:
    state = r.Registry()
    for event in events:
        state = r.step(state, event)
    return state


def told(device_id: str, at_s: float = 1.0, **said: object) -> r.Told:
    return r.Told(at_s, CheckIn(device_id, 10, 4, **said))  # type: ignore[arg-type]


def test_an_entry_holds_what_the_device_said_last_and_when_it_was_seen() -> None:
    state = after(
        told("a", 5.0, battery_percent=50),
        r.Left(6.0, "a"),
        told("a", 7.0, battery_percent=40),
        r.Seen(9.0, "a"),
    )
    entry = state.devices["a"]
    assert entry.said is not None
    assert (entry.said.battery_percent, entry.first_seen_s, entry.last_seen_s, entry.online) == (
        40,
        5.0,
        9.0,
        True,
    )


def test_a_device_may_be_tagged_and_banned_before_it_was_ever_here() -> None:
    state = after(
        r.Tagged(1.0, "a", ("b", "a")),
        r.Banned(2.0, "a", "stolen"),
        r.Banned(3.0, "a", "still"),
        r.Tagged(3.0, "a", ("b",)),
    )
    assert state.devices["a"] == r.Entry(tags=("a", "b"), ban=r.Ban(2.0, "still"))


@pytest.mark.parametrize(
    "event",
    [
        r.Seen(1.0, "x"),
        r.Left(1.0, "x"),
        r.Forgotten(1.0, "x"),
        r.Unbanned(1.0, "x"),
        r.Untagged(1.0, "x", ()),
    ],
)
def test_an_event_that_says_nothing_of_an_unknown_device_makes_no_entry(event: r.Event) -> None:
    assert after(event).devices == r.Registry().devices


def test_a_change_of_group_is_remembered_and_the_same_group_is_none() -> None:
    state = after(
        told("a"), *(r.Grouped(float(n), "run-1", n, {"a": str(n // 2)}) for n in range(30))
    )
    groups = state.devices["a"].groups
    assert [change.group for change in groups] == [str(n) for n in range(7, 15)]
    assert len(groups) == r.HISTORY
    assert (
        r.step(state, r.Grouped(99.0, "run-2", 1, {"a": "14"})).devices["a"].groups[-1].campaign
        == "run-2"
    )


def test_a_device_that_its_campaign_no_longer_places_is_in_no_group() -> None:
    placed = {"a": Placed("1", 0.8, 5)}
    state = after(told("a"), told("b"), r.Grouped(1.0, "run-1", 1, {"a": "1", "b": "0"}, placed))
    assert (state.devices["a"].group, state.devices["a"].placed) == ("1", placed["a"])
    assert r.step(state, r.Grouped(2.0, "run-2", 1, {})).devices == state.devices, (
        "another campaign has no say"
    )
    later = r.step(state, r.Grouped(2.0, "run-1", 2, {"b": "0"}))
    assert (later.devices["a"].group, later.devices["a"].placed, later.devices["b"]) == (
        "",
        None,
        state.devices["b"],
    )
    assert r.step(state, r.Regrouped(2.0, "a", "run-1", 2, "")).devices == later.devices
    back = r.step(later, r.Grouped(3.0, "run-1", 3, {"a": "1"})).devices["a"]
    assert (back.group, [change.round for change in back.groups]) == ("1", [1, 3])


def test_of_a_forgotten_device_only_a_ban_stays() -> None:
    events = (told("a"), r.Tagged(1.0, "a", ("t",)))
    assert "a" not in after(*events, r.Forgotten(2.0, "a")).devices
    assert after(*events, r.Banned(2.0, "a", "x"), r.Forgotten(3.0, "a")).devices["a"] == r.Entry(
        ban=r.Ban(2.0, "x")
    )


ids = st.sampled_from("abc")
events = st.one_of(
    st.builds(told, ids, st.floats(1, 9)),
    st.builds(r.Left, st.floats(1, 9), ids),
    st.builds(r.Tagged, st.floats(1, 9), ids, st.tuples(ids)),
    st.builds(r.Untagged, st.floats(1, 9), ids, st.tuples(ids)),
    st.builds(r.Banned, st.floats(1, 9), ids, st.just("x")),
    st.builds(r.Unbanned, st.floats(1, 9), ids),
    st.builds(r.Forgotten, st.floats(1, 9), ids),
    st.builds(
        r.Declined, st.floats(1, 9), ids, st.just("run"), st.just(1), st.just("policy"), st.just("")
    ),
)


@given(st.lists(events, max_size=30), ids)
def test_events_of_other_devices_do_not_touch_an_entry(
    history: list[r.Event], device_id: str
) -> None:
    def of(event: r.Event) -> str:
        return event.said.device_id if isinstance(event, r.Told) else event.device_id  # type: ignore[union-attr]

    own = after(*(event for event in history if of(event) == device_id))
    assert after(*history).devices.get(device_id) == own.devices.get(device_id)


def test_a_device_of_ten_thousand_costs_what_one_of_a_thousand_does() -> None:
    def held(count: int) -> int:
        tracemalloc.start()
        state = after(
            *(
                told(f"d{i:05d}", client="shoal 1.2.3", hardware="Pi 4", battery_percent=50.0)
                for i in range(count)
            )
        )
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(state.devices) == count
        return size

    assert held(10_000) < 1.2 * 10 * held(1_000)
