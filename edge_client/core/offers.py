"""Models that are offered to a device, by a release or by a finished campaign. Pure.

Rules (SPEC.md, 'Releases'): offers are taken in the order of their numbers, none twice. An offer
that fails is tried again later, since its obstacle may have passed. An offer whose loading ends the
client repeatedly is given up. The outcome of an offer is remembered until the next offer. A device
that goes back to the model before keeps the newer one, whose offer stays closed.
"""

import msgspec

from edge_client.core.kept import kept_of, why_alone
from edge_client.core.ports import Current
from edge_client.core.session import MOST_TRIES, ModelOffer, Session
from wire.messages import LARGEST_COUNT, InUse, Release


def on_release(session: Session, release: Release) -> Session:
    """Return the session after a release came.

    A release that is no newer than the last offer, or comes from an earlier start of the aggregator
    than the last release, changes nothing.
    """
    if release.number <= session.released or release.epoch < session.released_epoch:
        return session
    offer = ModelOffer(
        release.epoch, release.run_id, release.bundle, release.model, release.number, release.group
    )
    return msgspec.structs.replace(
        session, offer=offer, released=release.number, released_epoch=release.epoch
    )


def open_offer(session: Session, current: Current | None) -> ModelOffer | None:
    """Return the offer that is still to be taken into use, or None.

    An offer is open if it has not failed or is to be tried again, and if the model in use is not
    that model with its latest personal model.
    """
    offer = session.offer
    if offer is None or (offer.problem and not offer.is_again):
        return None
    if current is not None and is_of_offer(session, current):
        personal_model = kept_of(session.personal_models, offer.bundle, offer.model)
        is_newer = personal_model is not None and personal_model.tensors != current.personal_model
        return offer if is_newer or offer.number > current.release else None
    return offer


def is_of_offer(session: Session, current: Current | None) -> bool:
    """Return True if the model in use is the last one that was offered."""
    offer = session.offer
    if offer is None or current is None:
        return False
    return (current.run_id, current.bundle, current.model) == (
        offer.run_id,
        offer.bundle,
        offer.model,
    )


def newest(current: Current | None, before: Current | None) -> Current | None:
    """Return the newer of the model in use and the one before.

    It is the one before if the device went back from it.
    """
    return before if current is not None and current.back and before is not None else current


def gone_back(current: Current, before: Current, reason: str) -> Current:
    """Return the model before as the one in use, because of this reason.

    After the device went back, that is a return to the newer model.
    """
    return msgspec.structs.replace(before, back="" if current.back else reason)


def on_trying(session: Session) -> Session:
    """Return the session before the offered model is loaded, with one more try.

    Save the session before loading: after too many tries the offer has a problem instead.
    """
    assert session.offer is not None
    tries = session.offer.tries
    if tries >= MOST_TRIES:
        problem = f"loading it was started {tries} times and ended this client each time"
        return _with_offer(
            session, msgspec.structs.replace(session.offer, problem=problem, is_again=False)
        )
    return _with_offer(session, msgspec.structs.replace(session.offer, tries=tries + 1))


def on_interrupted(session: Session) -> Session:
    """Return the session after an orderly stop of a take-up, which does not count as a try."""
    assert session.offer is not None
    return _with_offer(
        session, msgspec.structs.replace(session.offer, tries=max(0, session.offer.tries - 1))
    )


def on_failed(session: Session, problem: str) -> Session:
    """Return the session after the offered model failed, with the problem."""
    assert session.offer is not None
    return _with_offer(
        session, msgspec.structs.replace(session.offer, tries=0, problem=problem, is_again=False)
    )


def on_again(session: Session) -> Session:
    """Return the session in which a failed offer is to be tried again, unless it was given up.

    This is due after a restart of the client and after a while. The device reports the old problem
    until the offer was tried.
    """
    offer = session.offer
    if offer is None or not offer.problem or offer.tries >= MOST_TRIES:
        return session
    return _with_offer(session, msgspec.structs.replace(offer, is_again=True))


def on_measured(session: Session, measured: ModelOffer, name: str, version: int) -> Session:
    """Return the session after the offered model passed its trial.

    Save the session before the model is taken into use.

    Args:
        measured: the offer, with what the trial measured.
        name: name of the offer's bundle.
        version: version of the offer's bundle.
    """
    versions = {**session.versions, name: max(version, session.versions.get(name, 0))}
    offer = msgspec.structs.replace(measured, problem="", is_again=False)
    return msgspec.structs.replace(_with_offer(session, offer), versions=versions)


def on_taken(session: Session) -> Session:
    """Return the session after the offered model was taken into use."""
    assert session.offer is not None
    return msgspec.structs.replace(
        _with_offer(session, msgspec.structs.replace(session.offer, tries=0)), failures=0
    )


def alone_of(session: Session, current: Current | None) -> str:
    """Return why the model in use answers without a personal model at present, or "".

    It is empty if a personal model is in use, or if the device has none.
    """
    if current is None or current.personal_model:
        return ""
    if kept_of(session.personal_models, current.bundle, current.model) is not None:
        return current.back or "the personal model of this model is not in use yet"
    return current.alone or why_alone(session.personal_models, current.bundle, current.model)


def in_use(session: Session, device_id: str, current: Current | None) -> InUse:
    """Return the device's report about its last offer; `current` is the model in use."""
    offer = session.offer or ModelOffer(0, "", "", "")
    back = current.back if current is not None and not is_of_offer(session, current) else ""
    return InUse(
        device_id=device_id,
        number=current.release if current else 0,
        offered=session.released,
        problem=offer.problem or back,
        evaluated=offer.evaluated,
        before=offer.before,
        latency_ms=offer.latency_ms,
        failures=min(session.failures, LARGEST_COUNT),
        alone=alone_of(session, current),
        model=current.model if current else "",
    )


def _with_offer(session: Session, offer: ModelOffer) -> Session:
    return msgspec.structs.replace(session, offer=offer)
