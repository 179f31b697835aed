"""Where a device keeps its state: a folder of small files, or memory (simulation)."""

from pathlib import Path

import msgspec

from edge_client.core.session import Session
from host.files import write_atomically
from wire.errors import ConfigError
from wire.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors


class FolderState:
    """An `edge_client.core.ports.DeviceState` in a folder: ``session.json update.safetensors private.RUN_ID.ROUND blobs/SHA256``."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: the folder cannot be made or written.
        """
        self._folder, self._blobs = folder, folder / "blobs"
        try:
            self._blobs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"state folder {folder}: {error.strerror}") from None

    def load(self) -> Session:
        path = self._folder / "session.json"
        if not path.exists():
            return Session()
        try:
            return msgspec.json.decode(path.read_bytes(), type=Session)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: not a session of this version ({error}); remove the folder to start afresh") from None

    def save(self, session: Session) -> None:
        write_atomically(self._folder / "session.json", msgspec.json.encode(session))

    def blob(self, digest: str) -> bytes | None:
        path = self._blobs / digest
        return path.read_bytes() if path.exists() else None

    def put_blob(self, digest: str, payload: bytes) -> None:
        write_atomically(self._blobs / digest, payload)

    def keep_blobs(self, digests: set[str]) -> None:
        for path in self._blobs.iterdir():
            if path.name not in digests:
                path.unlink()

    def put_update(self, run_id: str, round: int, payload: bytes, private: Tensors) -> None:
        if private:
            write_atomically(self._private_path(run_id, round), encode_tensors(private))
        write_atomically(self._folder / "update.safetensors", payload)
        for path in self._private_files(run_id, round)[:-2]:
            path.unlink()

    def update(self) -> bytes | None:
        path = self._folder / "update.safetensors"
        return path.read_bytes() if path.exists() else None

    def drop_update(self) -> None:
        (self._folder / "update.safetensors").unlink(missing_ok=True)

    def private(self, run_id: str, round: int) -> Tensors:
        before = self._private_files(run_id, round - 1)
        return decode_tensors(before[-1].read_bytes(), OWN_FILES)[0] if before else {}

    def _private_path(self, run_id: str, round: int) -> Path:
        return self._folder / f"private.{run_id}.{round:08d}"

    def _private_files(self, run_id: str, up_to: int) -> list[Path]:
        files = sorted(self._folder.glob(f"private.{run_id}.????????"))
        return [path for path in files if int(path.name[-8:]) <= up_to]


class MemoryState:
    """An `edge_client.core.ports.DeviceState` in memory."""

    def __init__(self) -> None:
        self._session = Session()
        self._blobs: dict[str, bytes] = {}
        self._update: bytes | None = None
        self._private: dict[tuple[str, int], Tensors] = {}

    def load(self) -> Session:
        return self._session

    def save(self, session: Session) -> None:
        self._session = session

    def blob(self, digest: str) -> bytes | None:
        return self._blobs.get(digest)

    def put_blob(self, digest: str, payload: bytes) -> None:
        self._blobs[digest] = payload

    def keep_blobs(self, digests: set[str]) -> None:
        self._blobs = {name: payload for name, payload in self._blobs.items() if name in digests}

    def put_update(self, run_id: str, round: int, payload: bytes, private: Tensors) -> None:
        self._update = payload
        if private:
            self._private = dict(sorted({**self._private, (run_id, round): private}.items())[-2:])

    def update(self) -> bytes | None:
        return self._update

    def drop_update(self) -> None:
        self._update = None

    def private(self, run_id: str, round: int) -> Tensors:
        before = [tensors for (run, r), tensors in self._private.items() if run == run_id and r < round]
        return before[-1] if before else {}
