"""Where a device keeps its state: a folder of small files, or memory (simulation)."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_client.agent.owner import Owner, claim
from edge_client.core.ports import BlobPart, Current
from edge_client.core.session import Session
from edge_client.models.folders import BEFORE, CURRENT, MODEL_JSON, MODEL_ONNX, ModelFolders
from host.files import lock_folder, make_folder, write_atomically
from host.part_file import PartFile
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.codec import digest as digest_of
from wire.errors import ConfigError, Malformed, WireError
from wire.messages import Pieces

log = logging.getLogger("shoal.edge")

PART = ".part"
DIGEST_BYTES = 64
"""A file of private tensors, and a checkpoint, begins with the SHA-256 of the rest, in so many
hexadecimal digits."""
MOST_RUNS = 4
"""Of so many runs, besides the last one, private tensors are kept: those that were written last."""
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


class FolderState:
    """An `edge_client.core.ports.DeviceState` in a folder: ``device.json session.json traffic.json
    update.safetensors checkpoint private.RUN_ID.ROUND blobs/SHA256 blobs/SHA256.part``, and
    ``current`` and ``before`` (`edge_client.models.folders`). A file that is damaged is set aside
    as ``NAME.damaged``, with a warning; a checkpoint is deleted."""

    def __init__(self, folder: Path, owner: Owner | None = None) -> None:
        """`owner`: whose it is; without, nobody asks.

        Raises:
            ConfigError: the folder cannot be made or written, or is another device's.
        """
        self._folder, self._blobs, self._models = folder, folder / "blobs", ModelFolders(folder)
        try:
            make_folder(self._blobs)
        except OSError as error:
            raise ConfigError(f"state folder {folder}: {error.strerror}") from None
        if owner is not None:
            claim(folder, owner)

    def load(self) -> Session:
        return self._document("session.json", Session) or Session()

    def save(self, session: Session) -> None:
        self._write(self._folder / "session.json", msgspec.json.encode(session))

    def has_blob(self, digest: str) -> bool:
        return (self._blobs / digest).exists()

    def blob(self, digest: str) -> bytes | None:
        path = self._blobs / digest
        if not path.exists():
            return None
        payload = path.read_bytes()
        if digest_of(payload) == digest:
            return payload
        _set_aside(path, "its bytes have another hash")
        return None

    def put_blob(self, digest: str, payload: bytes) -> None:
        self._write(self._blobs / digest, payload)

    def part(self, pieces: Pieces) -> PartFile:
        return PartFile(self._blobs / f"{pieces.digest}{PART}", pieces)

    def finish(self, part: BlobPart) -> bool:
        assert isinstance(part, PartFile)
        if part.is_whole():
            part.move(self._blobs / part.pieces.digest)
            return True
        part.path.unlink(missing_ok=True)
        return False

    def keep_blobs(self, digests: set[str]) -> None:
        for path in self._blobs.iterdir():
            if path.name.removesuffix(PART) not in digests:
                path.unlink()

    def put_update(self, run_id: str, round: int, payload: bytes, private: Tensors) -> None:
        if private:
            tensors = encode_tensors(private)
            self._write(self._private_path(run_id, round), digest_of(tensors).encode() + tensors)
        self._write(self._folder / "update.safetensors", payload)
        for path in [*self._private_files(run_id, round)[:-2], *self._old_runs(run_id)]:
            path.unlink()

    def update(self) -> bytes | None:
        path = self._folder / "update.safetensors"
        return path.read_bytes() if path.exists() else None

    def update_size(self) -> int:
        path = self._folder / "update.safetensors"
        return path.stat().st_size if path.exists() else 0

    def update_part(self, offset: int, size: int) -> bytes:
        with (self._folder / "update.safetensors").open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def drop_update(self) -> None:
        (self._folder / "update.safetensors").unlink(missing_ok=True)

    def checkpoint(self) -> bytes | None:
        path = self._folder / "checkpoint"
        if not path.exists():
            return None
        payload = path.read_bytes()
        told, made = payload[:DIGEST_BYTES], payload[DIGEST_BYTES:]
        if told == digest_of(made).encode():
            return made
        log.warning(
            "%s is damaged and deleted: its bytes have another hash; the plan starts anew", path
        )
        path.unlink()
        return None

    def put_checkpoint(self, payload: bytes) -> None:
        self._write(self._folder / "checkpoint", digest_of(payload).encode() + payload)

    def drop_checkpoint(self) -> None:
        for name in ("checkpoint", "checkpoint.new"):
            (self._folder / name).unlink(missing_ok=True)

    def private(self, run_id: str, round: int) -> Tensors:
        for path in reversed(self._private_files(run_id, round - 1)):
            payload = path.read_bytes()
            told, tensors = payload[:DIGEST_BYTES], payload[DIGEST_BYTES:]
            try:
                if told != digest_of(tensors).encode():
                    raise Malformed("its bytes have another hash")
                return decode_tensors(tensors, OWN_FILES)[0]
            except WireError as error:
                _set_aside(
                    path,
                    f"{error}; what this device had for itself is as it was before, or starts anew",
                )
        return {}

    def current(self) -> Current | None:
        return self._document(f"{CURRENT}/{MODEL_JSON}", Current)

    def before(self) -> Current | None:
        return self._document(f"{BEFORE}/{MODEL_JSON}", Current)

    def onnx(self, current: Current) -> bytes | None:
        return StoredModel(self._folder).onnx(current)

    def put_current(self, current: Current, onnx: bytes) -> None:
        self._models.put(current, onnx, keep=self.current() is not None)

    def traffic(self) -> dict[int, int]:
        return self._document("traffic.json", dict[int, int]) or {}

    def put_traffic(self, bytes_by_hour: dict[int, int]) -> None:
        self._write(self._folder / "traffic.json", msgspec.json.encode(bytes_by_hour))

    def _document(self, name: str, kind: type[T]) -> T | None:
        """A JSON file of the folder; None if there is none, or if it is damaged.

        Raises:
            ConfigError: it cannot be read.
        """
        path = self._folder / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _set_aside(path, str(error))
            return None

    def _write(self, path: Path, payload: bytes) -> None:
        """Write a file whole. What was begun on a full disk is removed, so that it does not fill it
        further."""
        try:
            write_atomically(path, payload)
        except OSError:
            path.with_name(path.name + ".new").unlink(missing_ok=True)
            raise

    def _private_path(self, run_id: str, round: int) -> Path:
        return self._folder / f"private.{run_id}.{round:08d}"

    def _private_files(self, run_id: str, up_to: int) -> list[Path]:
        """The files of a run's private tensors up to a round, in order."""
        files = sorted(
            path
            for path in self._folder.glob("private.*.????????")
            if _run_of(path) == run_id and path.name[-8:].isdigit()
        )
        return [path for path in files if int(path.name[-8:]) <= up_to]

    def _old_runs(self, run_id: str) -> list[Path]:
        """The files of runs that are too many, this one not among them."""
        files = sorted(
            self._folder.glob("private.*.????????"),
            key=lambda path: path.stat().st_mtime_ns,
            reverse=True,
        )
        runs = list(dict.fromkeys(_run_of(path) for path in files if _run_of(path) != run_id))
        return [path for path in files if _run_of(path) in runs[MOST_RUNS:]]


def _run_of(path: Path) -> str:
    return path.name[len("private.") : -9]


def _set_aside(path: Path, problem: str) -> None:
    """Rename a damaged file, so that somebody may look at it; where even that fails it is
    removed."""
    log.warning("%s is damaged and set aside as %s.damaged: %s", path, path.name, problem)
    try:
        path.replace(path.with_name(path.name + ".damaged"))
    except OSError:
        path.unlink(missing_ok=True)


class StoredModel:
    """The model in use in a `FolderState`'s folder, read by another process than the client:
    nothing is made, moved or removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return f"state folder {self._folder}"

    def stamp(self) -> tuple[int, int] | None:
        """What changes whenever another model comes into use; None where there is none."""
        try:
            told = (self._folder / CURRENT / MODEL_JSON).stat()
        except OSError:
            return None
        return told.st_ino, told.st_mtime_ns

    def current(self) -> Current:
        """Which model is in use.

        Raises:
            ConfigError: none is, or the folder cannot be read.
        """
        path = self._folder / CURRENT / MODEL_JSON
        try:
            return msgspec.json.decode(path.read_bytes(), type=Current)
        except FileNotFoundError:
            raise ConfigError(
                f"{self}: no model is in use: none was released to this device, or it is another "
                "folder"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: damaged: {error}") from None

    def blob(self, digest: str) -> bytes | None:
        """The bytes, which have this hash; None where there are none."""
        try:
            payload = (self._folder / "blobs" / digest).read_bytes()
        except OSError:
            return None
        return payload if digest_of(payload) == digest else None

    def onnx(self, current: Current) -> bytes | None:
        """The whole of this model in one file; None where it has none, or where it is gone or
        damaged."""
        try:
            payload = (self._folder / CURRENT / MODEL_ONNX).read_bytes()
        except OSError:
            return None
        return payload if digest_of(payload) == current.onnx else None


class MemoryPart:
    """An `edge_client.core.ports.BlobPart` in memory."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.held: dict[int, bytes] = dict.fromkeys(range(len(pieces.pieces)), b"")

    @property
    def missing(self) -> list[int]:
        return [index for index, payload in self.held.items() if not payload]

    def put(self, index: int, payload: bytes) -> bool:
        if index in self.held and digest_of(payload) == self.pieces.pieces[index]:
            self.held[index] = payload
        return bool(self.held.get(index))


class MemoryState:
    """An `edge_client.core.ports.DeviceState` in memory."""

    def __init__(self) -> None:
        self._session = Session()
        self._blobs: dict[str, bytes] = {}
        self._parts: dict[Pieces, MemoryPart] = {}
        self._update: bytes | None = None
        self._private: dict[tuple[str, int], Tensors] = {}
        self._checkpoint: bytes | None = None
        self._current: Current | None = None
        self._before: Current | None = None
        self._onnx = b""
        self._traffic: dict[int, int] = {}

    def load(self) -> Session:
        return self._session

    def save(self, session: Session) -> None:
        self._session = session

    def has_blob(self, digest: str) -> bool:
        return digest in self._blobs

    def blob(self, digest: str) -> bytes | None:
        return self._blobs.get(digest)

    def put_blob(self, digest: str, payload: bytes) -> None:
        self._blobs[digest] = payload

    def part(self, pieces: Pieces) -> "MemoryPart":
        return self._parts.setdefault(pieces, MemoryPart(pieces))

    def finish(self, part: BlobPart) -> bool:
        payload = b"".join(self._parts.pop(part.pieces).held.values())
        if digest_of(payload) == part.pieces.digest:
            self._blobs[part.pieces.digest] = payload
            return True
        return False

    def keep_blobs(self, digests: set[str]) -> None:
        self._blobs = {name: payload for name, payload in self._blobs.items() if name in digests}
        self._parts = {
            pieces: part for pieces, part in self._parts.items() if pieces.digest in digests
        }

    def put_update(self, run_id: str, round: int, payload: bytes, private: Tensors) -> None:
        self._update = payload
        if private:
            self._private = dict(sorted({**self._private, (run_id, round): private}.items())[-2:])

    def update(self) -> bytes | None:
        return self._update

    def update_size(self) -> int:
        return len(self._update or b"")

    def update_part(self, offset: int, size: int) -> bytes:
        return (self._update or b"")[offset : offset + size]

    def drop_update(self) -> None:
        self._update = None

    def checkpoint(self) -> bytes | None:
        return self._checkpoint

    def put_checkpoint(self, payload: bytes) -> None:
        self._checkpoint = payload

    def drop_checkpoint(self) -> None:
        self._checkpoint = None

    def private(self, run_id: str, round: int) -> Tensors:
        before = [
            tensors for (run, r), tensors in self._private.items() if run == run_id and r < round
        ]
        return before[-1] if before else {}

    def current(self) -> Current | None:
        return self._current

    def before(self) -> Current | None:
        return self._before

    def onnx(self, current: Current) -> bytes | None:
        return self._onnx if current == self._current and self._onnx else None

    def put_current(self, current: Current, onnx: bytes) -> None:
        self._before, self._current, self._onnx = self._current, current, onnx

    def traffic(self) -> dict[int, int]:
        return self._traffic

    def put_traffic(self, bytes_by_hour: dict[int, int]) -> None:
        self._traffic = bytes_by_hour
