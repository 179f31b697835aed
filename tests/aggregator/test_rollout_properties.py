"""Properties of rollouts over random histories."""

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from aggregator.core.release import state as s
from aggregator.core.release.progress import progress_of
from aggregator.core.release.reach import members, needed, place_of
from aggregator.core.release.releases import GIVEN_UP, Release
from aggregator.core.release.rollout import step
from aggregator.core.state import decode_state, encode_state
from tests.aggregator.rollout_cases import Rig, draft
from wire.messages import InUse, Metrics

DEVICES = ("d0", "d1", "d2", "d3", "d4")
GROUPS = ("0", "1")
CHOICES = st.sampled_from([(0.3, 1.0), (0.1, 0.5, 1.0), (1.0,)])
sums = st.builds(
    Metrics, st.integers(0, 20), st.sampled_from([0.0, 1.0, 1e300]), st.integers(0, 20)
)
histories = st.lists(
    st.one_of(
        st.tuples(
            st.just("check-in"), st.tuples(st.sampled_from(DEVICES), st.sampled_from(("", *GROUPS)))
        ),
        st.tuples(st.just("left"), st.sampled_from(DEVICES)),
        st.tuples(st.just("release"), st.tuples(st.sampled_from("ab"), CHOICES, st.booleans())),
        st.tuples(st.just("made"), st.sampled_from("ab")),
        st.tuples(st.just("begun"), st.tuples(st.sampled_from("ab"), st.integers(1, 9))),
        st.tuples(st.just("content"), st.sampled_from(DEVICES)),
        st.tuples(st.just("worse"), st.sampled_from(DEVICES)),
        st.tuples(
            st.just("claim"),
            st.builds(
                InUse,
                st.sampled_from((*DEVICES, "stranger")),
                st.integers(0, 12),
                st.integers(0, 12),
                st.sampled_from(("", "broken")),
                sums,
                sums,
                st.sampled_from((0.0, 1.0, 100.0)),
            ),
        ),
        st.tuples(st.just("tick"), st.sampled_from((1.0, 200.0))),
        st.tuples(st.just("halted"), st.sampled_from("ab")),
        st.tuples(st.just("went on"), st.sampled_from("ab")),
        st.tuples(st.just("promoted"), st.tuples(st.sampled_from("ab"), st.integers(0, 2))),
        st.tuples(st.just("called off"), st.sampled_from("ab")),
        st.tuples(st.just("went back"), st.tuples(st.integers(0, 12), st.sampled_from(GROUPS))),
        st.tuples(st.just("restarted"), st.none()),
        st.tuples(st.just("removed"), st.sampled_from(DEVICES)),
    ),
    max_size=60,
)


def play(rig: Rig, kind: str, value: Any, made: int) -> list[s.Give]:
    """Do one thing of a history."""
    at_s = rig.at_s
    match kind:
        case "check-in":
            return rig.check_in(value[0], group=value[1])
        case "left":
            return rig.feed(s.Presence(at_s, left=(value,)))
        case "release":
            campaign, shares, swap = value
            groups = {d: GROUPS[(i + swap) % 2] for i, d in enumerate(rig.state.devices)}
            drafts = [draft(group, f"{campaign}{made}", campaign) for group in GROUPS]
            return rig.release(
                *drafts, steps=tuple(s.RolloutStep(share) for share in shares), groups=groups
            )
        case "made":
            return rig.feed(s.Made(at_s, (draft("0", f"{value}{made}", value),)))
        case "begun":
            campaign, number = value
            steps = (s.RolloutStep(1.0),)
            return rig.feed(
                s.Begun(
                    at_s=at_s,
                    campaign=campaign,
                    numbers=(number,),
                    steps=steps,
                    gate=s.Gate(),
                    groups={},
                )
            )
        case "content":
            return rig.answer(value)
        case "worse":
            return rig.answer(value, accuracy=0.1)
        case "claim":
            return rig.feed(s.Said(at_s, value))
        case "tick":
            return rig.tick(value)
        case "halted":
            return rig.feed(s.RolloutOrder(at_s, value, "pause"))
        case "went on":
            return rig.feed(s.RolloutOrder(at_s, value, "resume"))
        case "promoted":
            return rig.feed(s.Promoted(at_s, *value))
        case "called off":
            return rig.feed(s.RolloutOrder(at_s, value, "end"))
        case "went back":
            return rig.feed(s.WentBack(at_s, *value))
        case "restarted":
            return rig.feed(s.Presence(at_s, left=tuple(rig.state.devices)))
        case "removed":
            rig.has.pop(value, None)
            return rig.feed(s.Removed(at_s, value))
    raise AssertionError(kind)


def replayed(log: list[s.FleetEvent]) -> s.FleetState:
    """The state after a log, read again from its bytes, with a snapshot in the middle."""
    state = s.FleetState()
    for number, event in enumerate(log):
        state, _ = step(state, msgspec.json.decode(msgspec.json.encode(event), type=s.FleetEvent))
        if number == len(log) // 2:
            state = decode_state(encode_state(state), s.FleetState)
    return state


RETURN = [
    *(("check-in", (device_id, "0")) for device_id in DEVICES),
    *(
        step
        for campaign in "ab"
        for step in [
            ("release", (campaign, (1.0,), False)),
            *(("content", device_id) for device_id in DEVICES),
            ("tick", 200.0),
        ]
    ),
    ("release", ("a", (0.3, 1.0), False)),
    ("went back", (1, "0")),
]
"""An operator returns behind what the devices had, while they are given something new."""


@example(RETURN)
@given(histories)
def test_any_history_keeps_what_is_promised(history: list[tuple[str, Any]]) -> None:
    rig = Rig()
    for made, (kind, value) in enumerate(history):
        before = rig.state
        gives = play(rig, kind, value, made)
        check_numbers(before, rig.state, gives)
        check_outside(before, rig.state, gives, kind)
        check_counts(rig.state)
        for campaign, rollout in rig.state.rollouts.items():
            was = before.rollouts.get(campaign)
            if rollout.phase == "rolled-back" and was is not None and was.phase in s.GOING:
                ordered = before.catalogue.releases.get(value[0]) if kind == "went back" else None
                check_returned(before, rig.state, was, ordered)
    assert replayed(rig.log) == rig.state


def check_numbers(before: s.FleetState, after: s.FleetState, gives: list[s.Give]) -> None:
    """Nobody is given a lower number than before; releases only grow and never change but for their
    state."""
    for give in gives:
        had = before.devices.get(give.device_id)
        assert give.number >= (had.given if had is not None else 0)
        assert after.devices[give.device_id].given >= give.number
    for number, release in before.catalogue.releases.items():
        assert (
            msgspec.structs.replace(after.catalogue.releases[number], state=release.state)
            == release
        )
    assert after.catalogue.last >= before.catalogue.last
    assert {after.catalogue.releases[n].state for n in after.catalogue.released.values()} <= {
        "released"
    }
    given = {holder.given for holder in after.devices.values()} | {
        holder.settled for holder in after.devices.values()
    }
    assert given - {0} <= needed(after, keep=0)


def check_outside(
    before: s.FleetState, after: s.FleetState, gives: list[s.Give], kind: str
) -> None:
    """A device outside the share gets nothing that is still on its way; a step of shares takes one
    device where it would reach nobody."""
    for give in gives:
        if (
            after.catalogue.releases[give.number].state != "canary"
            or before.devices.get(give.device_id, s.Holder()).given == give.number
        ):
            continue
        holder = after.devices[give.device_id]
        rollout = next(r for r in after.rollouts.values() if give.number in r.releases.values())
        share = max(chosen.share for chosen in rollout.steps[: rollout.step + 1])
        assert place_of(give.device_id, rollout.salt) < share or rollout.first == give.device_id
        assert rollout.phase == "running"
        assert rollout.releases[holder.group] == give.number


def check_counts(state: s.FleetState) -> None:
    """What is told of a rollout adds up, to the devices that have its releases."""
    for campaign, rollout in state.rollouts.items():
        progress = progress_of(state, campaign, rollout)
        for counts in (*progress.steps, progress.returned):
            assert counts.offered == counts.confirmed + counts.failed + counts.waiting + counts.away
            assert sum(counts.reasons.values()) == counts.failed
        reached = [
            holder
            for _, holder, _ in members(state, rollout)
            if holder.given == rollout.releases[holder.group]
        ]
        assert sum(step.offered for step in progress.steps) == len(reached)


def check_returned(
    before: s.FleetState, after: s.FleetState, failed: s.Rollout, ordered: Release | None
) -> None:
    """Whoever had a release of the rollout that failed has been given the model that it had before,
    or what its group has, or the one that an operator `ordered`; only one that never had another
    keeps it."""
    for device_id, holder in before.devices.items():
        if holder.given not in failed.releases.values():
            continue
        now, releases = after.devices[device_id], after.catalogue.releases
        if now.given == holder.given:
            assert not holder.settled or releases[holder.settled].state in GIVEN_UP
            assert holder.group not in before.catalogue.released
        else:
            assert now.given > holder.given
            settled = before.catalogue.releases.get(holder.settled)
            if settled is not None and settled.state not in GIVEN_UP:
                assert releases[now.given].model in {
                    settled.model,
                    ordered.model if ordered is not None else settled.model,
                }
            assert releases[now.given].state in ("released", "retired")
