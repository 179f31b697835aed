"""Writes checkpoints of a plan and resumes work from them. The rules are in `core.checkpoint`."""

import logging
from collections.abc import Callable

from edge_client.core.checkpoint import (
    FORMAT,
    MOST_BYTES,
    Basis,
    Checkpoint,
    Pace,
    decode_checkpoint,
    encode_checkpoint,
    unusable,
    work_digest,
)
from edge_client.storage.state import CHECKPOINT, DeviceState
from edge_client.work.executor import Executor
from wire.errors import WireError
from wire.messages import CLIENT, Plan

log = logging.getLogger("shoal.edge")


class Checkpoints:
    """Checkpoints of one plan at a time.

    A device can train without checkpoints. A fault in a checkpoint or on the disk is therefore
    logged and never raised.
    """

    def __init__(
        self,
        device_id: str,
        state: DeviceState,
        runtime: str,
        pace: Pace,
        progressed: Callable[[int, bool], None],
        clock: Callable[[], float],
    ) -> None:
        """Create the checkpoints of a device.

        Args:
            progressed: called for each checkpoint on the disk, with the number of graph runs up to
                it and True if the work resumes from it now.
            clock: returns seconds of a monotonic clock.
        """
        self._device_id, self._state, self._runtime, self._pace = device_id, state, runtime, pace
        self._progressed, self._clock = progressed, clock
        self._plan: Plan | None = None
        self._executor: Executor | None = None
        self._began_s = self._due_s = 0.0
        self.before_s = 0.0
        """Seconds spent on the plan before the client's last start."""

    @property
    def worked_s(self) -> float:
        """Seconds spent on the plan so far, earlier starts of the client included."""
        return self.before_s + self._clock() - self._began_s

    def begin(self, plan: Plan, executor: Executor) -> Checkpoint | None:
        """Begin a plan and return the checkpoint to resume from, or None if there is none."""
        self._plan, self._executor = plan, executor
        self.before_s, self._began_s = 0.0, self._clock()
        self._due_s = self._began_s + self._pace.every_s
        checkpoint = self._stored()
        if checkpoint is not None:
            self.before_s = checkpoint.place.seconds
            self._progressed(checkpoint.place.runs, True)
            log.info(
                "Plan resumed from a checkpoint: device=%s round=%d verb=%d runs=%d",
                self._device_id,
                plan.round,
                checkpoint.place.verb,
                checkpoint.place.runs,
            )
        return checkpoint

    def drop(self, problem: str) -> None:
        """Delete the checkpoint and log the problem; the plan starts from the beginning."""
        log.warning(
            "Checkpoint dropped, the plan starts again: device=%s: %s",
            self._device_id,
            problem,
        )
        self.before_s = 0.0
        try:
            self._state.files.delete(CHECKPOINT)
        except OSError as error:
            log.warning("Checkpoint not deleted: device=%s: %s", self._device_id, error)

    def between(self) -> None:
        """Write a checkpoint if one is due. Called before each batch."""
        if self._clock() >= self._due_s:
            self.write()

    def write(self) -> None:
        """Write a checkpoint now. Call it only between two batches.

        A failure is logged. After a checkpoint that cannot be encoded or is too large, this plan
        gets no further ones.
        """
        if self._executor is None or self._plan is None or self._due_s == float("inf"):
            return
        began_s = self._clock()
        try:
            checkpoint = self._executor.checkpoint(self.worked_s)
            payload = encode_checkpoint(self._basis(self._plan, self._executor), checkpoint)
            if len(payload) > MOST_BYTES:
                raise ValueError(f"it has {len(payload)} bytes, at most {MOST_BYTES} are written")
            self._state.put_checkpoint(payload)
        except (OSError, ValueError) as error:
            log.warning(
                "Checkpoint not written, work continues: device=%s: %s", self._device_id, error
            )
            if isinstance(error, ValueError):
                self._due_s = float("inf")
                return
        else:
            self._progressed(checkpoint.place.runs, False)
        ended_s = self._clock()
        self._due_s = ended_s + self._pace.pause_s(ended_s - began_s)

    def _basis(self, plan: Plan, executor: Executor) -> Basis:
        return Basis(FORMAT, CLIENT, self._runtime, work_digest(plan), executor.windows_digest)

    def _stored(self) -> Checkpoint | None:
        """Return the checkpoint on the disk, or None if it is not of this plan and its windows."""
        assert self._plan is not None
        assert self._executor is not None
        try:
            payload = self._state.checkpoint()
            if payload is None:
                return None
            basis, checkpoint = decode_checkpoint(payload)
            problem = unusable(basis, self._basis(self._plan, self._executor))
        except (OSError, WireError) as error:
            problem = str(error)
        if problem:
            self.drop(problem)
            return None
        return checkpoint
