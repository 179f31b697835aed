"""Files of a device that must survive a restart."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_client.core.ports import Current
from edge_client.core.questions import Question
from edge_client.core.session import DAMAGED, Session, Start
from edge_client.core.stream import StreamSums
from edge_client.storage.files import BEFORE, CURRENT, Files, FolderFiles, MemoryFiles
from edge_client.storage.owner import Owner, claim
from host.files import file_error, lock_folder, make_folder
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.codec import digest as digest_of
from wire.errors import ConfigError, Malformed, SecondDevice, WireError

log = logging.getLogger("shoal.edge")

SESSION, START, UPDATE, CHECKPOINT, TRAFFIC = (
    "session.json",
    "start.json",
    "update.safetensors",
    "checkpoint",
    "traffic.json",
)
BLOBS, PRIVATE, PART = "blobs/", "private.", ".part"
MODEL_JSON, MODEL_ONNX = "model.json", "model.onnx"
STREAM, QUESTIONS = "stream.json", "questions.json"
DIGEST_BYTES = 64
"""Number of hexadecimal digits of the SHA-256 at the start of a checked file.

Files of private tensors and checkpoints are checked. The hash is that of the rest of the file.
"""
ROUND_DIGITS = 8
SECOND_DEVICE = (
    "another device uses this identity, and the service works with that one: was this state folder "
    "copied or restored? Enrol this device anew, with an empty state folder. If this is the right "
    "device, let the operator run `shoal devices unban` with its id, then delete {place}"
)
MOST_RUNS = 4
"""Number of campaigns besides the present one whose private tensors stay stored."""
T = TypeVar("T")


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Lock this state folder against other processes while the context is open.

    Raises:
        ConfigError: another process uses it, or it cannot be created or written.
    """
    try:
        lock = lock_folder(folder)
    except BlockingIOError:
        raise ConfigError(
            f"state folder {folder} is in use by another process; each device needs its own folder"
        ) from None
    except OSError as error:
        raise ConfigError(file_error(f"state folder {folder}", error)) from None
    try:
        yield
    finally:
        os.close(lock)


class DeviceState:
    """The state of a device.

    Its files are ``device.json session.json start.json traffic.json stream.json questions.json
    update.safetensors checkpoint private.RUN_ID.ROUND blobs/SHA256 blobs/SHA256.part``, and
    ``current`` and ``before`` with ``model.json`` and ``model.onnx``. A file is written completely
    or, with an OSError, not at all. A damaged file is set aside as ``NAME.damaged``, with a
    warning. A damaged checkpoint is deleted.
    """

    def __init__(
        self, folder: Path | None = None, owner: Owner | None = None, *, read_only: bool = False
    ) -> None:
        """Open the state of a device.

        Args:
            folder: path of the state folder, None for a state in memory.
            owner: device that must own the folder, None for no check.
            read_only: True if another process writes the folder. Nothing is created, moved or
                deleted here then.

        Raises:
            ConfigError: the folder cannot be created or written, or is another device's.
        """
        self.files: Files = MemoryFiles() if folder is None else FolderFiles(folder)
        self._folder, self._read_only = folder, read_only
        if folder is None or read_only:
            return
        try:
            make_folder(folder / BLOBS)
        except OSError as error:
            raise ConfigError(file_error(f"state folder {folder}", error)) from None
        if owner is not None:
            claim(folder, owner)

    def load(self) -> Session:
        """Return the saved session, or a new one if there is none or it is damaged.

        Raises:
            ConfigError: it cannot be read.
        """
        return self.document(SESSION, Session) or Session()

    def save(self, session: Session) -> None:
        """Save the session."""
        self.files.write(SESSION, msgspec.json.encode(session))

    def begin(self, instance: int) -> Start:
        """Count a start of the client, whose random number is `instance`, and return it.

        If it cannot be stored, the last start goes on: the service must never see two starts of one
        device under one number.

        Raises:
            ConfigError: the file of starts cannot be read.
            SecondDevice: as `check_start`.
        """
        is_first = not self.files.size(START)
        last = self.check_start()
        if last is None:
            last = Start() if is_first else DAMAGED
        start = last.next(instance)
        try:
            self.files.write(START, msgspec.json.encode(start))
        except OSError as error:
            log.warning("Start of the client not counted: folder=%s: %s", self._folder, error)
            return last if last.number > 0 else Start()
        return start

    def check_start(self) -> Start | None:
        """Return the last start of the client, or None if there is none or its file is damaged.

        Raises:
            ConfigError: the file of starts cannot be read.
            SecondDevice: the service has refused it as that of a second device. The text says what
                to do.
        """
        last = self.document(START, Start)
        if last is not None and last.is_refused:
            raise SecondDevice(SECOND_DEVICE.format(place=f"{self._folder}/{START}"))
        return last

    def refuse(self, start: Start) -> SecondDevice:
        """Store that the service has refused this start, and return the error that ends the client.

        If it cannot be stored, the next start is refused anew.
        """
        refused = msgspec.structs.replace(start, is_refused=True)
        try:
            self.files.write(START, msgspec.json.encode(refused))
        except OSError as error:
            log.warning("Refusal of the device not stored: folder=%s: %s", self._folder, error)
        return SecondDevice(SECOND_DEVICE.format(place=f"{self._folder}/{START}"))

    def document(self, name: str, kind: type[T]) -> T | None:
        """Return the content of a JSON file, or None if there is none or it is damaged.

        Raises:
            ConfigError: it cannot be read, or it is damaged and the state is read-only.
        """
        try:
            payload = self.files.read(name)
        except OSError as error:
            raise ConfigError(file_error(f"{self._folder}/{name}", error)) from None
        try:
            return None if payload is None else msgspec.json.decode(payload, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if self._read_only:
                raise ConfigError(f"{self._folder}/{name} is damaged: {error}") from None
            self._set_aside(name, str(error))
            return None

    def blob(self, digest: str) -> bytes | None:
        """Return a stored blob, or None if there is none.

        A blob whose bytes no longer have this hash is set aside.
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
        """Store a blob."""
        self.files.write(BLOBS + digest, payload)

    def keep_blobs(self, digests: set[str]) -> None:
        """Delete all blobs and partial downloads except those of these digests."""
        blob_names = {BLOBS + digest + end for digest in digests for end in ("", PART)}
        self.files.delete(*(name for name in self.files.names(BLOBS) if name not in blob_names))

    def put_update(self, run_id: str, round: int, payload: bytes, private: Tensors) -> None:
        """Store a finished update and the private tensors after its round.

        Private tensors of the two latest rounds of the campaign and of `MOST_RUNS` other campaigns
        stay stored; older ones are deleted.
        """
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
        """Return a campaign's private tensors (``private/NAME``) as they were before a round.

        Without stored tensors the result is empty. A round that is repeated after a crash starts
        from the same tensors.
        """
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
        """Return the stored checkpoint, or None if there is none.

        A damaged checkpoint is deleted.
        """
        try:
            return self._checked(CHECKPOINT)
        except Malformed as error:
            log.warning(
                "Checkpoint is damaged and deleted, the plan starts again: file=%s: %s",
                f"{self._folder}/{CHECKPOINT}",
                error,
            )
            self.files.delete(CHECKPOINT)
            return None

    def put_checkpoint(self, payload: bytes) -> None:
        """Store a checkpoint in place of the previous one."""
        self._write_checked(CHECKPOINT, payload)

    def current(self) -> Current | None:
        """Return the model in use, or None if there is none or its file is damaged."""
        return self.document(f"{CURRENT}/{MODEL_JSON}", Current)

    def before(self) -> Current | None:
        """Return the model that was in use before, or None if there is none."""
        return self.document(f"{BEFORE}/{MODEL_JSON}", Current)

    def onnx(self, current: Current) -> bytes | None:
        """Return the model in use as one ONNX file, or None if it is missing or damaged."""
        with suppress(OSError):
            payload = self.files.read(f"{CURRENT}/{MODEL_ONNX}")
            if payload is not None and digest_of(payload) == current.onnx:
                return payload
        return None

    def put_current(self, current: Current, onnx: bytes) -> None:
        """Take another model into use, in one step. The previous one stays stored as ``before``.

        The model's blobs must be stored already. `onnx` is the whole model as one ONNX file, or
        empty.
        """
        text = msgspec.json.format(msgspec.json.encode(current), indent=1)
        files = {MODEL_ONNX: onnx, MODEL_JSON: text} if onnx else {MODEL_JSON: text}
        place = f"{current.release}-{digest_of(text)[:16]}"
        self.files.switch(place, files, keep=self.current() is not None)

    def stream(self, bundle: str) -> StreamSums:
        """Return the sums of the streams of a bundle's windows, new ones if there are none."""
        with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
            sums = msgspec.json.decode(self.files.read(STREAM) or b"", type=StreamSums)
            if sums.bundle == bundle:
                return sums
        return StreamSums(bundle)

    def put_stream(self, sums: StreamSums) -> None:
        """Store the sums of a bundle's streams. `predict --live` writes them, not the client."""
        self.files.write(STREAM, msgspec.json.encode(sums))

    def questions(self) -> tuple[Question, ...]:
        """Return the stretches that may be asked about; none if the file is damaged."""
        with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
            payload = self.files.read(QUESTIONS) or b""
            return msgspec.json.decode(payload, type=tuple[Question, ...])
        return ()

    def put_questions(self, questions: tuple[Question, ...]) -> None:
        """Store the stretches. `predict --live` writes them, not the client."""
        self.files.write(QUESTIONS, msgspec.json.encode(questions))

    def _private_names(self, run_id: str, up_to: int) -> list[str]:
        """Return the file names of a campaign's private tensors up to a round, in order."""
        names = sorted(name for name in self.files.names(PRIVATE) if _run_of(name) == run_id)
        return [name for name in names if int(name[-ROUND_DIGITS:]) <= up_to]

    def _write_checked(self, name: str, payload: bytes) -> None:
        self.files.write(name, digest_of(payload).encode() + payload)

    def _checked(self, name: str) -> bytes | None:
        """Return the content of a file behind its hash, or None if there is no file.

        Raises:
            Malformed: the content has another hash.
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
            "File is damaged and set aside: file=%s new_name=%s.damaged: %s",
            f"{self._folder}/{name}",
            name.rpartition("/")[2],
            problem,
        )
        self.files.set_aside(name)


def _run_of(name: str) -> str:
    """Return the campaign of a file of private tensors, or "" for another file."""
    run, _, number = name.removeprefix(PRIVATE).rpartition(".")
    return run if len(number) == ROUND_DIGITS and number.isdigit() else ""
