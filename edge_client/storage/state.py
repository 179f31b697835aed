"""State of a device that must survive a restart."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_client.core.ports import Current
from edge_client.core.session import Session
from edge_client.storage.files import BEFORE, CURRENT, Files, FolderFiles, MemoryFiles
from edge_client.storage.owner import Owner, claim
from host.files import lock_folder, make_folder
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.codec import digest as digest_of
from wire.errors import ConfigError, Malformed, WireError

log = logging.getLogger("shoal.edge")

SESSION, UPDATE, CHECKPOINT, TRAFFIC = (
    "session.json",
    "update.safetensors",
    "checkpoint",
    "traffic.json",
)
BLOBS, PRIVATE, PART = "blobs/", "private.", ".part"
MODEL_JSON, MODEL_ONNX = "model.json", "model.onnx"
DIGEST_BYTES = 64
"""A file of private tensors, and a checkpoint, begins with the SHA-256 of the rest, in so many
hexadecimal digits."""
ROUND_DIGITS = 8
MOST_RUNS = 4
"""Number of runs besides the last one whose private tensors are kept: those written last."""
T = TypeVar("T")


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """While the context is open, no other process may use this state folder.

    Raises:
        ConfigError: another process uses it, or it cannot be made or written.
    """
    try:
        held = lock_folder(folder)
    except BlockingIOError:
        raise ConfigError(
            f"state folder {folder}: another process uses it; each device needs a folder of its own"
        ) from None
    except OSError as error:
        raise ConfigError(f"state folder {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(held)


class DeviceState:
    """The state of a device.

    Its files are ``device.json session.json traffic.json update.safetensors checkpoint
    private.RUN_ID.ROUND blobs/SHA256 blobs/SHA256.part``, and ``current`` and ``before`` with
    ``model.json`` and ``model.onnx``. Every write is complete or did not happen; an OSError says
    that it did not. A file that is damaged is set aside as ``NAME.damaged``, with a warning; a
    checkpoint is deleted.
    """

    def __init__(
        self, folder: Path | None = None, owner: Owner | None = None, *, read_only: bool = False
    ) -> None:
        """`folder`: where it is; in memory if None. `owner`: whose it is; without, nobody asks.
        `read_only`: another process writes, and nothing is made, moved or removed here.

        Raises:
            ConfigError: the folder cannot be made or written, or is another device's.
        """
        self.files: Files = MemoryFiles() if folder is None else FolderFiles(folder)
        self._folder, self._read_only = folder, read_only
        if folder is None or read_only:
            return
        try:
            make_folder(folder / BLOBS)
        except OSError as error:
            raise ConfigError(f"state folder {folder}: {error.strerror}") from None
        if owner is not None:
            claim(folder, owner)

    def load(self) -> Session:
        """The session as last saved; a new one at first, and if the saved one is damaged."""
        return self.document(SESSION, Session) or Session()

    def save(self, session: Session) -> None:
        """Save the session."""
        self.files.write(SESSION, msgspec.json.encode(session))

    def document(self, name: str, kind: type[T]) -> T | None:
        """Return what a JSON file says; None if there is none, or if it is damaged.

        Raises:
            ConfigError: it cannot be read; or is damaged, where nothing may be set aside.
        """
        try:
            payload = self.files.read(name)
        except OSError as error:
            raise ConfigError(f"{self._folder}/{name}: {error.strerror}") from None
        try:
            return None if payload is None else msgspec.json.decode(payload, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if self._read_only:
                raise ConfigError(f"{self._folder}/{name}: damaged: {error}") from None
            self._set_aside(name, str(error))
            return None

    def blob(self, digest: str) -> bytes | None:
        """Return a downloaded blob; None if there is none.

        One whose bytes no longer have this hash is set aside.
        """
        try:
            payload = self.files.read(BLOBS + digest)
        except OSError:
            if not self._read_only:
                raise
            return None
        if payload is None or digest_of(payload) == digest:
            return payload
        if not self._read_only:
            self._set_aside(BLOBS + digest, "its bytes have another hash")
        return None

    def put_blob(self, digest: str, payload: bytes) -> None:
        """Keep a downloaded blob."""
        self.files.write(BLOBS + digest, payload)

    def keep_blobs(self, digests: set[str]) -> None:
        """Forget every blob but these, and every part of one."""
        kept = {BLOBS + digest + end for digest in digests for end in ("", PART)}
        self.files.delete(*(name for name in self.files.names(BLOBS) if name not in kept))

    def put_update(self, run_id: str, round: int, payload: bytes, private: Tensors) -> None:
        """Keep a finished update, and the private tensors as they are after that round."""
        if private:
            self._write_checked(
                f"{PRIVATE}{run_id}.{round:0{ROUND_DIGITS}d}", encode_tensors(private)
            )
        self.files.write(UPDATE, payload)
        names = [name for name in self.files.names(PRIVATE) if _run_of(name)]
        runs = list(dict.fromkeys(_run_of(name) for name in reversed(names)))
        old = [run for run in runs if run != run_id][MOST_RUNS:]
        self.files.delete(
            *self._private_names(run_id, round)[:-2],
            *(name for name in names if _run_of(name) in old),
        )

    def private(self, run_id: str, round: int) -> Tensors:
        """Return the private tensors (``private/NAME``) as they were before this round of this run;
        empty at first. A round that is carried out again after a crash starts from the same."""
        for name in reversed(self._private_names(run_id, round - 1)):
            try:
                return decode_tensors(self._checked(name) or b"", OWN_FILES)[0]
            except WireError as error:
                self._set_aside(
                    name,
                    f"{error}; what this device had for itself is as it was before, or starts anew",
                )
        return {}

    def checkpoint(self) -> bytes | None:
        """Return what `put_checkpoint` kept; None if there is nothing.

        A checkpoint that is damaged is deleted.
        """
        try:
            return self._checked(CHECKPOINT)
        except Malformed as error:
            log.warning(
                "%s is damaged and deleted: %s; the plan starts anew",
                f"{self._folder}/{CHECKPOINT}",
                error,
            )
            self.files.delete(CHECKPOINT)
            return None

    def put_checkpoint(self, payload: bytes) -> None:
        """Keep this in place of the one before."""
        self._write_checked(CHECKPOINT, payload)

    def current(self) -> Current | None:
        """Return which model is in use, as last put; None if none is, or if that is damaged."""
        return self.document(f"{CURRENT}/{MODEL_JSON}", Current)

    def before(self) -> Current | None:
        """Return which model was in use before that one."""
        return self.document(f"{BEFORE}/{MODEL_JSON}", Current)

    def onnx(self, current: Current) -> bytes | None:
        """Return the one file of the model in use; None if there is none, or if it is damaged."""
        with suppress(OSError):
            payload = self.files.read(f"{CURRENT}/{MODEL_ONNX}")
            if payload is not None and digest_of(payload) == current.onnx:
                return payload
        return None

    def put_current(self, current: Current, onnx: bytes) -> None:
        """Take another model into use, all at once; the one before is kept until the next.

        Its blobs are stored already; `onnx` is the whole of it in one file, or empty.
        """
        text = msgspec.json.format(msgspec.json.encode(current), indent=1)
        files = {MODEL_ONNX: onnx, MODEL_JSON: text} if onnx else {MODEL_JSON: text}
        place = f"{current.release}-{digest_of(text)[:16]}"
        self.files.switch(place, files, keep=self.current() is not None)

    def _private_names(self, run_id: str, up_to: int) -> list[str]:
        """Return the names of a run's private tensors up to a round, in order."""
        names = sorted(name for name in self.files.names(PRIVATE) if _run_of(name) == run_id)
        return [name for name in names if int(name[-ROUND_DIGITS:]) <= up_to]

    def _write_checked(self, name: str, payload: bytes) -> None:
        self.files.write(name, digest_of(payload).encode() + payload)

    def _checked(self, name: str) -> bytes | None:
        """Return what a file holds behind its hash; None if there is none.

        Raises:
            Malformed: it is damaged.
        """
        payload = self.files.read(name)
        if payload is None:
            return None
        content = payload[DIGEST_BYTES:]
        if payload[:DIGEST_BYTES] != digest_of(content).encode():
            raise Malformed("its bytes have another hash")
        return content

    def _set_aside(self, name: str, problem: str) -> None:
        log.warning(
            "%s is damaged and set aside as %s.damaged: %s",
            f"{self._folder}/{name}",
            name.rpartition("/")[2],
            problem,
        )
        self.files.set_aside(name)


def _run_of(name: str) -> str:
    """Return the run of a file of private tensors; empty if it is none."""
    run, _, number = name.removeprefix(PRIVATE).rpartition(".")
    return run if len(number) == ROUND_DIGITS and number.isdigit() else ""
