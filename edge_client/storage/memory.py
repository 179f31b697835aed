"""The session in memory and on disk, with the update that belongs to it."""

import logging

import msgspec

from edge_client.core.session import Session, still_works
from edge_client.storage.incidents import Incidents
from edge_client.storage.state import CHECKPOINT, UPDATE, DeviceState
from wire.arrays.tensors import RECEIVED_FILES
from wire.codec import decode_update, digest
from wire.errors import WireError
from wire.messages import Update

log = logging.getLogger("shoal.edge")


class SessionStore:
    """The session of a device.

    `session` is the stored session. If the disk failed in `note`, it is the session that should be
    stored.
    """

    def __init__(self, device_id: str, state: DeviceState, incidents: Incidents) -> None:
        """Load the stored session and make it fit the stored update.

        They may not fit after a crash between the two writes, or if one of them is damaged.

        Raises:
            ConfigError: the state folder cannot be read.
        """
        self._device_id, self._state, self._incidents = device_id, state, incidents
        self.session = state.load()
        payload = state.files.read(UPDATE)
        self.note(self._recovered(payload))
        if payload is not None and self.session.update != digest(payload):
            self._delete(UPDATE)
        if self.session.stage != "working":
            self._delete(CHECKPOINT)

    def save(self, session: Session) -> None:
        """Store a session. Call it before acting on the session.

        An update or checkpoint that the session no longer needs is deleted.

        Raises:
            OSError: it cannot be stored. The session is unchanged.
        """
        if session == self.session:
            return
        over = bool(self.session.update) and not session.update
        try:
            self._state.save(session)
        except OSError:
            if not over:
                raise
            self._state.files.delete(UPDATE)  # the disk may be full
            self._state.save(session)
        before, self.session = self.session, session
        if over:
            self._delete(UPDATE)
        if not still_works(before, session):
            self._delete(CHECKPOINT)

    def note(self, session: Session) -> None:
        """Store a session that is valid even if it cannot be stored.

        A failure is logged. Its worst effect is that work is repeated after a restart.
        """
        try:
            self.save(session)
        except OSError as error:
            self._incidents.add("Session not stored", error)
            self.session = session

    def _delete(self, name: str) -> None:
        """Delete the update or the checkpoint; a failure is logged.

        A checkpoint must not outlive its plan, as it contains private tensors.
        """
        try:
            self._state.files.delete(name)
        except OSError as error:
            self._incidents.add(f"File {name} not deleted", error)

    def _recovered(self, payload: bytes | None) -> Session:
        """Return the session that fits the update on disk.

        A session without a plan is a new one. An update of this device is sent then, too.
        """
        session, plan = self.session, self.session.plan
        if payload is not None and session.stage == "pending" and session.update == digest(payload):
            return session
        update = None if payload is None else self._read(payload)
        if payload is not None and update is not None:
            same = plan is not None and (update.run_id, update.round, update.attempt) == (
                plan.run_id,
                plan.round,
                plan.attempt,
            )
            if plan is None or (same and session.stage in ("working", "pending")):
                return msgspec.structs.replace(
                    session, stage="pending", update=digest(payload), tries=0
                )
        if session.stage == "pending":  # its update is lost, so the work is repeated
            return msgspec.structs.replace(
                session, stage="working" if plan is not None else "answered", update=""
            )
        return session

    def _read(self, payload: bytes) -> Update | None:
        try:
            update = decode_update(payload, RECEIVED_FILES)[0]
        except WireError as error:
            log.warning(
                "Finished update is damaged, dropped: device=%s: %s", self._device_id, error
            )
            return None
        return update if update.device_id == self._device_id else None
