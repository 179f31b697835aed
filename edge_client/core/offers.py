"""What a device does about a model that is offered to it, as a release or by a finished run
(SPEC.md, 'Releases'); pure.

Rules: releases are taken in the order of their numbers, none twice; one that cannot be used is
tried again later, since what was in its way may have passed; one whose loading ends the client
again and again is given up; what becomes of one is remembered until the next.
"""

import msgspec

from edge_client.core.kept import kept_of, why_alone
from edge_client.core.ports import Current
from edge_client.core.session import MOST_TRIES, Offer, Session
from wire.messages import LARGEST_COUNT, InUse, Release


def on_release(session: Session, release: Release) -> Session:
    """A release came. One that is no newer than the last, or speaks for an earlier start of the
    aggregator, changes nothing."""
    if release.number <= session.released or release.epoch < session.released_epoch:
        return session
    offer = Offer(
        release.epoch, release.run_id, release.bundle, release.model, release.number, release.group
    )
    return msgspec.structs.replace(
        session, offer=offer, released=release.number, released_epoch=release.epoch
    )


def open_offer(session: Session, current: Current | None) -> Offer | None:
    """The offer that is still to be taken into use: it has not failed, or is to be tried again, and
    is not in use with what was kept of it last."""
    offer = session.offer
    if offer is None or (offer.problem and not offer.is_again):
        return None
    if current is not None and is_of_offer(session, current):
        kept = kept_of(session.kept, offer.bundle, offer.model)
        is_newer = kept is not None and kept.tensors != current.kept
        return offer if is_newer or offer.number > current.release else None
    return offer


def is_of_offer(session: Session, current: Current | None) -> bool:
    """Whether the model in use is the one that was offered last."""
    offer = session.offer
    if offer is None or current is None:
        return False
    return (current.run_id, current.bundle, current.model) == (
        offer.run_id,
        offer.bundle,
        offer.model,
    )


def on_trying(session: Session) -> Session:
    """The offered model is about to be loaded. To be saved before it is."""
    assert session.offer is not None
    tries = session.offer.tries
    if tries >= MOST_TRIES:
        problem = f"loading it was started {tries} times and ended this client each time"
        return _with_offer(
            session, msgspec.structs.replace(session.offer, problem=problem, is_again=False)
        )
    return _with_offer(session, msgspec.structs.replace(session.offer, tries=tries + 1))


def on_interrupted(session: Session) -> Session:
    """Taking the offered model into use was broken off in good order: that is no try."""
    assert session.offer is not None
    return _with_offer(
        session, msgspec.structs.replace(session.offer, tries=max(0, session.offer.tries - 1))
    )


def on_failed(session: Session, problem: str) -> Session:
    """The offered model cannot be used, and why."""
    assert session.offer is not None
    return _with_offer(
        session, msgspec.structs.replace(session.offer, tries=0, problem=problem, is_again=False)
    )


def on_again(session: Session) -> Session:
    """The client was started anew, or a while has passed: what failed is to be tried again, unless
    it was given up. Until that is done, the device goes on saying its problem."""
    offer = session.offer
    if offer is None or not offer.problem or offer.tries >= MOST_TRIES:
        return session
    return _with_offer(session, msgspec.structs.replace(offer, is_again=True))


def on_measured(session: Session, measured: Offer, name: str, version: int) -> Session:
    """The offered model was tried and can be used: `measured` is the offer with what was found. Its
    bundle has this name and version. To be saved before it is taken into use."""
    known = {**session.versions, name: max(version, session.versions.get(name, 0))}
    offer = msgspec.structs.replace(measured, problem="", is_again=False)
    return msgspec.structs.replace(_with_offer(session, offer), versions=known)


def on_taken(session: Session) -> Session:
    """The offered model is in use."""
    assert session.offer is not None
    return msgspec.structs.replace(
        _with_offer(session, msgspec.structs.replace(session.offer, tries=0)), failures=0
    )


def alone_of(session: Session, current: Current | None) -> str:
    """Why the model in use answers without what the device has kept, as things are now; empty where
    it has that, or nothing was kept."""
    if current is None or current.kept:
        return ""
    if kept_of(session.kept, current.bundle, current.model) is not None:
        return "what is kept of this model is not in use yet"
    return current.alone or why_alone(session.kept, current.bundle, current.model)


def in_use(session: Session, device_id: str, current: Current | None) -> InUse:
    """What the device says of its releases; `current` is the model in use."""
    offer = session.offer
    if offer is None or offer.number != session.released:
        offer = Offer(0, "", "", "", session.released)
    return InUse(
        device_id=device_id,
        number=current.release if current else 0,
        offered=session.released,
        problem=offer.problem,
        evaluated=offer.evaluated,
        before=offer.before,
        latency_ms=offer.latency_ms,
        failures=min(session.failures, LARGEST_COUNT),
        alone=alone_of(session, current),
    )


def _with_offer(session: Session, offer: Offer) -> Session:
    return msgspec.structs.replace(session, offer=offer)
