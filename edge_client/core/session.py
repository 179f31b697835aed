"""Memory of a device between messages, and its reaction to the next one. Pure.

Rules (SPEC.md, 'Order of plans'): a plan is carried out once. A finished update is kept until the
aggregator acknowledges or refuses it. A plan from an earlier epoch than the latest one is
answered with the proof of the later epoch. Work that ends the client repeatedly is given up.

Assignments of all campaigns are numbered together (`Plan.attempt`), so the last accepted plan alone
tells which plans of its epoch are over, of any campaign. No list of campaigns has to be stored.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from edge_client.core.kept import PersonalModel, with_kept
from edge_client.core.report import Machine
from wire.messages import (
    Acknowledge,
    Busy,
    DeclineReason,
    ErrorReport,
    Finish,
    MaybeDigest,
    Metrics,
    Plan,
    Refuse,
)

MOST_TRIES = 5
"""Maximum number of starts of work on one plan, and of starts to take up one offered model."""

Stage = Literal["working", "pending", "declined", "answered"]


class ModelOffer(msgspec.Struct, frozen=True):
    """Model that a release or a finished campaign offers for use, with its outcome."""

    epoch: int
    run_id: str
    bundle: str
    model: str
    number: int = 0
    """Number of the release; 0 if a finished campaign offers the model."""
    group: str = ""
    tries: int = 0
    """Number of starts to take it into use that did not end."""
    problem: str = ""
    """Reason why it is not in use; empty if it is in use, or was not tried yet."""
    is_again: bool = False
    """True if it is to be tried again in spite of a problem."""
    evaluated: Metrics = Metrics()
    """Metrics of this model over the windows that the device holds out."""
    before: Metrics = Metrics()
    """Metrics of the model in use before, over the same windows."""
    latency_ms: float = 0.0
    """Duration of a prediction of one window."""


class Start(msgspec.Struct, frozen=True):
    """A start of the client, by which the service tells two devices of one identity apart.

    Starts with one state folder have growing numbers. A copy of the folder goes on from the same
    number with another random one.
    """

    number: int = 0
    """Number of the start, from 1; 0 for a start that is not counted and never refused."""
    instance: int = 0
    """Random number of the start."""
    is_refused: bool = False
    """True if the service has refused this start as that of a second device."""

    def next(self, instance: int) -> "Start":
        """Return the start after this one."""
        return Start(self.number + 1, instance)

    def is_meant_by(self, reply: Refuse) -> bool:
        """Return True if a reply refuses this start as that of a second device."""
        is_second = reply.reason == "second-device"
        return is_second and self.instance != 0 and reply.instance == self.instance


DAMAGED = Start(-1)
"""Last start by a damaged file. The next one is not counted, so that the device is not refused."""


class Session(msgspec.Struct, frozen=True):
    """Memory of a device."""

    plan: Plan | None = None
    """Last plan that was accepted."""
    plan_text: str = ""
    """Text of that plan as it came, with its signatures."""
    stage: Stage = "answered"
    """State of the plan.

    The device works on it; its update is pending, that is, waits for an answer; it was declined; or
    its update was answered.
    """
    tries: int = 0
    """Number of starts of work on it that did not end, since its last progress."""
    update: MaybeDigest = ""
    """Digest of the pending update; its bytes are in the state folder."""
    reason: DeclineReason | None = None
    detail: str = ""
    """Explanation of why the plan was declined."""
    versions: dict[str, int] = {}
    """Newest version of each bundle that was used, by the bundle's name."""
    offer: ModelOffer | None = None
    """Last model that was offered, with its outcome."""
    offered_epoch: int = 0
    """Greatest epoch of a `Finish`."""
    released: int = 0
    """Number of the last offer that came, by a release or by a `Finish`."""
    released_epoch: int = 0
    """Epoch of the last release that came."""
    failures: int = 0
    """Number of failed predictions since the model in use was taken up."""
    personal_models: tuple[PersonalModel, ...] = ()
    """Personal models of the device."""
    reached: int = 0
    """Furthest point of the work, at which `tries` was last reset (number of runs of graphs)."""
    machine: Machine | None = None
    """The machine at the start of the work, or at its last checkpoint.

    None if the last start of the work came to an orderly stop.
    """
    error: ErrorReport | None = None
    """Report of the last error."""


@dataclass(frozen=True)
class Action:
    """Next action of the agent.

    It works on the plan, sends the pending update, declines a plan, drops the update, or does
    nothing.
    """

    kind: Literal["work", "send", "decline", "drop", "none"]
    reason: DeclineReason = "failed"
    detail: str = ""
    proof: str = ""


NOTHING = Action("none")


def on_plan(session: Session, plan: Plan, text: str, now_s: float) -> tuple[Session, Action]:
    """Return the session and the action after a plan came.

    Args:
        session: the session before.
        plan: the plan that came.
        text: the plan as it came, with its signatures.
        now_s: the aggregator's time, as well as the device knows it.
    """
    last_plan = session.plan
    if last_plan is not None and plan.epoch < last_plan.epoch:
        detail = f"the plan's epoch is {plan.epoch}, a plan of epoch {last_plan.epoch} came before"
        return session, Action("decline", "stale", detail, session.plan_text)
    if last_plan is not None and same_work(last_plan, plan):
        newer = msgspec.structs.replace(session, plan=plan, plan_text=text)
        if session.stage == "pending":
            return newer, Action("send")
        if session.stage == "working":
            return newer, NOTHING
        if plan.epoch == last_plan.epoch:
            return session, Action(
                "decline", session.reason, session.detail
            ) if session.reason else NOTHING
        if session.stage == "answered":  # its noise would be drawn again, and count twice
            return newer, Action("decline", "failed", "this plan was carried out before, or ended")
    elif (
        last_plan is not None and last_plan.epoch == plan.epoch and _order(plan) < _order(last_plan)
    ):
        return session, NOTHING
    changed = msgspec.structs.replace(
        session,
        plan=plan,
        plan_text=text,
        stage="working",
        tries=0,
        reached=0,
        update="",
        reason=None,
        detail="",
        machine=None,
    )
    if now_s > plan.deadline_at_s:
        return on_declined(
            changed,
            plan,
            "expired",
            f"its deadline was over {now_s - plan.deadline_at_s:.0f} s ago",
        )
    return changed, Action("work")


def on_start(session: Session, machine: Machine) -> tuple[Session, Action]:
    """Return the session and the action before work on the plan starts on `machine`.

    Save the session before the work starts: a start that ends the client has to count.
    """
    assert session.plan is not None
    if session.tries >= MOST_TRIES:
        return on_declined(
            session,
            session.plan,
            "quarantined",
            f"work on it was started {session.tries} times and ended this client each time",
        )
    started = msgspec.structs.replace(session, tries=session.tries + 1, machine=machine)
    return started, Action("work")


def on_stopped(session: Session) -> Session:
    """Return the session at an orderly stop of the client: the unfinished work did not fail."""
    return (
        msgspec.structs.replace(session, tries=max(0, session.tries - 1), machine=None)
        if session.stage == "working"
        else session
    )


def was_killed(session: Session) -> bool:
    """Return True if the client ended in the midst of the work. Ask at a start of the client."""
    return session.stage == "working" and session.machine is not None


def on_progress(session: Session, plan: Plan, runs: int) -> Session:
    """Return the session after a checkpoint was stored, at `runs` runs of graphs.

    Work that gets further than before does not fail, however often it is interrupted: the tries
    count anew. A graph that ends the client ends it at the same place again.
    """
    if not (_is_worked_on(session, plan) and session.tries and runs > session.reached):
        return session
    return msgspec.structs.replace(session, tries=0, reached=runs)


def on_resumed(session: Session, plan: Plan, runs: int) -> Session:
    """Return the session after work resumed from a checkpoint, at `runs` runs of graphs.

    If that is further than before, the starts before this one made progress and do not count as
    tries. This start has made none yet.
    """
    if not (_is_worked_on(session, plan) and runs > session.reached):
        return session
    return msgspec.structs.replace(session, tries=min(session.tries, 1), reached=runs)


def on_executed(session: Session, plan: Plan, update: str) -> Session:
    """Return the session after the plan was carried out and its update was stored.

    If another plan came in the meantime, that plan stays.
    """
    if not _is_worked_on(session, plan):
        return session
    return msgspec.structs.replace(session, stage="pending", update=update, tries=0, machine=None)


def on_personal_model(session: Session, model: PersonalModel) -> Session:
    """Return the session with the personal model that a plan produced.

    Save the session before the update is stored.
    """
    personal_models = with_kept(session.personal_models, model)
    return msgspec.structs.replace(session, personal_models=personal_models)


def on_personal_model_lost(session: Session, tensors: str) -> Session:
    """Return the session without a personal model whose tensors are missing or damaged."""
    return msgspec.structs.replace(
        session,
        personal_models=tuple(
            personal_model
            for personal_model in session.personal_models
            if personal_model.tensors != tensors
        ),
    )


def on_declined(
    session: Session, plan: Plan, reason: DeclineReason, detail: str
) -> tuple[Session, Action]:
    """Return the session and the action after the plan was declined. It is not tried again.

    If another plan came in the meantime, that plan stays.
    """
    if _is_worked_on(session, plan):
        session = msgspec.structs.replace(
            session, stage="declined", reason=reason, detail=detail, tries=0
        )
    return session, Action("decline", reason, detail)


def on_reply(
    session: Session, reply: Acknowledge | Refuse | Busy | Finish
) -> tuple[Session, Action]:
    """Return the session and the action after the aggregator answered."""
    match reply:
        case Finish():
            if reply.epoch < max(session.offered_epoch, session.plan.epoch if session.plan else 0):
                return session, NOTHING
            session = msgspec.structs.replace(session, offered_epoch=reply.epoch)
            if (
                session.stage == "working"
                and session.plan is not None
                and session.plan.run_id == reply.run_id
            ):
                session = msgspec.structs.replace(session, stage="answered", tries=0)
            return session if reply.releases else _offered(session, reply), NOTHING
        case Acknowledge() | Refuse() if (
            session.stage == "pending" and reply.update == session.update
        ):
            return msgspec.structs.replace(session, stage="answered", update=""), Action("drop")
    return session, NOTHING


def _offered(session: Session, finish: Finish) -> Session:
    """Return the session with the model that a finish offers.

    A finish whose number is not greater than that of the last offer is a repetition of an old one.
    A model that failed before is not tried again just because it is offered again.
    """
    if finish.number <= session.released:
        return session
    session, last_offer = msgspec.structs.replace(session, released=finish.number), session.offer
    if last_offer is not None and (last_offer.run_id, last_offer.bundle, last_offer.model) == (
        finish.run_id,
        finish.bundle,
        finish.model,
    ):
        return session
    return msgspec.structs.replace(
        session, offer=ModelOffer(finish.epoch, finish.run_id, finish.bundle, finish.model)
    )


def same_work(one: Plan, other: Plan) -> bool:
    """Return True if both plans are the same attempt of the same round: one update answers both."""
    return one.run_id == other.run_id and _order(one) == _order(other)


def still_works(before: Session, after: Session) -> bool:
    """Return True if no work was abandoned between two sessions: none was done, or it continues."""
    return before.stage != "working" or before.plan is None or _is_worked_on(after, before.plan)


def _is_worked_on(session: Session, plan: Plan) -> bool:
    return session.stage == "working" and session.plan is not None and same_work(session.plan, plan)


def _order(plan: Plan) -> tuple[int, int]:
    return plan.attempt, plan.round
