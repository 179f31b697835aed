"""What a device knows between messages, and what it does about the next one (SPEC.md, 'Order of
plans'); pure.

Rules: a plan is carried out once; a finished update is kept until the aggregator acknowledges or
refuses it; what speaks for an earlier start of the aggregator than the device has heard is answered
with the proof of the later one; work that ends the client again and again is not started for ever.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from edge_client.core.kept import Kept, with_kept
from wire.messages import (
    Acknowledge,
    Busy,
    DeclineReason,
    Finish,
    MaybeDigest,
    Metrics,
    Plan,
    Refuse,
)

MOST_TRIES = 5
"""How often work on one plan is started, at most; likewise taking one offered model into use."""

Stage = Literal["working", "pending", "declined", "answered"]


class Offer(msgspec.Struct, frozen=True):
    """A model to take into use, as a release or a finished run names it, and what became of it."""

    epoch: int
    run_id: str
    bundle: str
    model: str
    number: int = 0
    """Of the release; 0 if a finished run offers the model."""
    group: str = ""
    tries: int = 0
    """How often taking it into use was started and did not end."""
    problem: str = ""
    """Why it is not in use; empty if it is in use, or was not tried yet."""
    is_again: bool = False
    """Whether it is to be tried again although there is a problem."""
    evaluated: Metrics = Metrics()
    """Over the windows that the device holds back, with this model."""
    before: Metrics = Metrics()
    """The same, with the model that was in use."""
    latency_ms: float = 0.0
    """What a prediction of one window takes."""


class Session(msgspec.Struct, frozen=True):
    """A device's memory."""

    plan: Plan | None = None
    """The last plan that was taken."""
    taken: str = ""
    """That plan as it came, with its signatures."""
    stage: Stage = "answered"
    """Whether the device works on it, its update awaits an answer, it was declined, or its update
    was answered."""
    tries: int = 0
    """How often work on it was started and did not end, since it last came further than ever."""
    update: MaybeDigest = ""
    """The pending update's digest; its bytes lie in the state folder."""
    reason: DeclineReason | None = None
    detail: str = ""
    """Why the plan was declined."""
    versions: dict[str, int] = {}
    """By name, the newest version of a bundle that was used."""
    offer: Offer | None = None
    """The last model that was offered, and what became of it."""
    offered_epoch: int = 0
    """The greatest epoch of a `Finish`."""
    released: int = 0
    """The number of the last release that was given."""
    released_epoch: int = 0
    """The epoch that it came from."""
    failures: int = 0
    """How many predictions have failed since the model in use was taken up."""
    kept: tuple[Kept, ...] = ()
    """What the device has kept, of which models."""
    reached: int = 0
    """How far work on the plan came: how often a graph had been run for it at the last checkpoint
    for which `tries` was set back."""


@dataclass(frozen=True)
class Action:
    """What the agent does next: work on the plan, send the pending update, decline a plan, drop the
    update, or nothing."""

    kind: Literal["work", "send", "decline", "drop", "none"]
    reason: DeclineReason = "failed"
    detail: str = ""
    proof: str = ""


NOTHING = Action("none")


def on_plan(session: Session, plan: Plan, text: str, now_s: float) -> tuple[Session, Action]:
    """A plan arrived. `text`: as it came; `now_s`: what the device knows of the aggregator's
    clock."""
    held = session.plan
    if held is not None and plan.epoch < held.epoch:
        detail = f"the plan's epoch is {plan.epoch}, a plan of epoch {held.epoch} came before"
        return session, Action("decline", "stale", detail, session.taken)
    if held is not None and same_work(held, plan):
        newer = msgspec.structs.replace(session, plan=plan, taken=text)
        if session.stage == "pending":
            return newer, Action("send")
        if session.stage == "working":
            return newer, NOTHING
        if plan.epoch == held.epoch:
            return session, Action(
                "decline", session.reason, session.detail
            ) if session.reason else NOTHING
    elif (
        held is not None
        and held.run_id == plan.run_id
        and held.epoch == plan.epoch
        and _order(plan) < _order(held)
    ):
        return session, NOTHING
    changed = msgspec.structs.replace(
        session,
        plan=plan,
        taken=text,
        stage="working",
        tries=0,
        reached=0,
        update="",
        reason=None,
        detail="",
    )
    if now_s > plan.deadline_at_s:
        return on_declined(
            changed,
            plan,
            "expired",
            f"its deadline was over {now_s - plan.deadline_at_s:.0f} s ago",
        )
    return changed, Action("work")


def on_start(session: Session) -> tuple[Session, Action]:
    """Work on the plan is about to start. To be saved before it does."""
    assert session.plan is not None
    if session.tries >= MOST_TRIES:
        return on_declined(
            session,
            session.plan,
            "quarantined",
            f"work on it was started {session.tries} times and ended this client each time",
        )
    return msgspec.structs.replace(session, tries=session.tries + 1), Action("work")


def on_stopped(session: Session) -> Session:
    """The client ends in good order: the work that it leaves did not fail."""
    return (
        msgspec.structs.replace(session, tries=max(0, session.tries - 1))
        if session.stage == "working"
        else session
    )


def on_progress(session: Session, plan: Plan, runs: int) -> Session:
    """A checkpoint of the work lies on disk, after so many runs of a graph. Work that comes further
    than ever before does not fail, however often it is ended; a graph that ends the client is met
    again at the same place."""
    if not (_is_worked_on(session, plan) and session.tries and runs > session.reached):
        return session
    return msgspec.structs.replace(session, tries=0, reached=runs)


def on_resumed(session: Session, plan: Plan, runs: int) -> Session:
    """Work that was started goes on from a checkpoint, after so many runs of a graph. If that is
    further than ever, the starts before this one came further; this one has not yet."""
    if not (_is_worked_on(session, plan) and runs > session.reached):
        return session
    return msgspec.structs.replace(session, tries=min(session.tries, 1), reached=runs)


def on_executed(session: Session, plan: Plan, update: str) -> Session:
    """The plan was carried out and its update lies on disk. If another plan came meanwhile, that
    one stays."""
    if not _is_worked_on(session, plan):
        return session
    return msgspec.structs.replace(session, stage="pending", update=update, tries=0)


def on_kept(session: Session, kept: Kept) -> Session:
    """A plan was carried out, and the device keeps this of the model that it started from. To be
    saved before its update is stored."""
    return msgspec.structs.replace(session, kept=with_kept(session.kept, kept))


def on_kept_lost(session: Session, tensors: str) -> Session:
    """What was kept is gone or damaged."""
    return msgspec.structs.replace(
        session, kept=tuple(kept for kept in session.kept if kept.tensors != tensors)
    )


def on_declined(
    session: Session, plan: Plan, reason: DeclineReason, detail: str
) -> tuple[Session, Action]:
    """The plan is not carried out; it is not tried again. If another plan came meanwhile, that one
    stays."""
    if _is_worked_on(session, plan):
        session = msgspec.structs.replace(
            session, stage="declined", reason=reason, detail=detail, tries=0
        )
    return session, Action("decline", reason, detail)


def on_reply(
    session: Session, reply: Acknowledge | Refuse | Busy | Finish
) -> tuple[Session, Action]:
    """The aggregator answered."""
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
    """The model that a finish names is to be taken into use. One that failed before is not tried
    again because it is offered again."""
    held = session.offer
    if held is not None and (held.run_id, held.bundle, held.model) == (
        finish.run_id,
        finish.bundle,
        finish.model,
    ):
        return session
    return msgspec.structs.replace(
        session, offer=Offer(finish.epoch, finish.run_id, finish.bundle, finish.model)
    )


def same_work(one: Plan, other: Plan) -> bool:
    """Whether two plans are the same round and attempt of the same run: one update answers both."""
    return one.run_id == other.run_id and _order(one) == _order(other)


def still_works(before: Session, after: Session) -> bool:
    """Whether no work was left between two sessions: none was done, or the same goes on."""
    return before.stage != "working" or before.plan is None or _is_worked_on(after, before.plan)


def _is_worked_on(session: Session, plan: Plan) -> bool:
    return session.stage == "working" and session.plan is not None and same_work(session.plan, plan)


def _order(plan: Plan) -> tuple[int, int]:
    return plan.round, plan.attempt
