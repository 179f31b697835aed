"""Large updates, put together from pieces on the disk. A device has one at a time; all together are
bounded in bytes, and each in time."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from host.files import make_folder
from host.part_file import PartFile
from wire.codec import digest as digest_of
from wire.errors import ConfigError, ShoalError
from wire.messages import Offer
from wire.pieces import MOST_BYTES, WINDOW

log = logging.getLogger("shoal.aggregator")

SUFFIX = ".part"
IDLE_S = 900.0
"""An update of which nothing came for so long is forgotten."""
TIMES = 32
"""All updates that are being put together have at most so many times the bytes that one may
have."""


class NoRoom(ShoalError):
    """So many updates are being put together that there is no room for another one now, or none on
    the disk."""


@dataclass
class _Coming:
    """An update that comes in pieces."""

    offer: Offer | None
    part: PartFile | None
    num_bytes: int
    heard_s: float


class Assembly:
    """Updates in a folder, one file a device. What is there outlives a restart: each piece is known
    by its hash."""

    def __init__(
        self, folder: Path, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        """`most_bytes`: of one update. `clock`: Unix time.

        Raises:
            ConfigError: the folder cannot be made.
        """
        self._folder, self.most_bytes, self._clock = folder, most_bytes, clock
        self._coming: dict[str, _Coming] = {}
        try:
            make_folder(folder)
            for path in folder.glob("*" + SUFFIX):
                said = path.stat()
                self._coming[path.name.removesuffix(SUFFIX)] = _Coming(
                    None, None, said.st_size, said.st_mtime
                )
        except OSError as error:
            raise ConfigError(f"folder {folder}: {error.strerror}") from None

    @property
    def num_bytes(self) -> int:
        """Of all updates that are being put together."""
        return sum(coming.num_bytes for coming in self._coming.values())

    def offer_of(self, device_id: str) -> Offer | None:
        """What a device has offered last."""
        coming = self._coming.get(device_id)
        return coming.offer if coming is not None else None

    def begin(self, offer: Offer) -> None:
        """Take an update, or go on with it. Another one of the device is forgotten.

        Raises:
            NoRoom: it cannot be taken now.
        """
        coming = self._coming.get(offer.device_id)
        if coming is not None and coming.offer == offer:
            coming.heard_s = self._clock()
            return
        if coming is not None and coming.offer is not None:
            self.drop(offer.device_id)
        for device_id in [
            d for d, each in self._coming.items() if self._clock() - each.heard_s > IDLE_S
        ]:
            self.drop(device_id)
        held = self._coming.get(offer.device_id)
        if (
            self.num_bytes - (held.num_bytes if held else 0) + offer.pieces.num_bytes
            > TIMES * self.most_bytes
        ):
            raise NoRoom(
                f"updates of {self.num_bytes} bytes are being put together: no room for "
                f"{offer.pieces.num_bytes} more"
            )
        try:
            part = PartFile(self._path(offer.device_id), offer.pieces)
        except OSError as error:
            raise NoRoom(f"{self._path(offer.device_id)}: {error.strerror}") from None
        self._coming[offer.device_id] = _Coming(offer, part, offer.pieces.num_bytes, self._clock())

    def put(self, device_id: str, update: str, index: int, payload: bytes) -> bool:
        """Take a piece of the update that the device has offered; whether it is what was offered,
        or of another one.

        Raises:
            NoRoom: the disk does not take it.
        """
        coming = self._coming.get(device_id)
        if coming is None or coming.part is None or coming.part.pieces.digest != update:
            return True
        coming.heard_s = self._clock()
        try:
            return coming.part.put(index, payload)
        except OSError as error:
            raise NoRoom(f"{self._path(device_id)}: {error.strerror}") from None

    def wanted(self, device_id: str) -> tuple[int, ...]:
        """The pieces that a device is to send next; none if all are here."""
        coming = self._coming.get(device_id)
        return (
            tuple(islice(coming.part.missing, WINDOW))
            if coming is not None and coming.part is not None
            else ()
        )

    def take(self, device_id: str) -> bytes | None:
        """All bytes of an update of which no piece is missing; None if they do not have the hash
        that was offered. It stays until `drop`.

        Raises:
            NoRoom: it cannot be read.
        """
        part = self._coming[device_id].part
        assert part is not None
        try:
            payload = part.path.read_bytes()
        except OSError as error:
            raise NoRoom(f"{self._path(device_id)}: {error.strerror}") from None
        return payload if digest_of(payload) == part.pieces.digest else None

    def drop(self, device_id: str) -> None:
        """Forget the update of a device."""
        if self._coming.pop(device_id, None) is not None:
            try:
                self._path(device_id).unlink(missing_ok=True)
            except OSError as error:
                log.error("%s: %s", self._path(device_id), error.strerror)

    def _path(self, device_id: str) -> Path:
        return self._folder / f"{device_id}{SUFFIX}"
