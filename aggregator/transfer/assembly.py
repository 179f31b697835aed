"""Large updates, assembled from pieces on the disk, with limits on bytes and on time."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from host.files import file_error, make_folder
from host.part_file import PartFile
from wire.codec import digest as digest_of
from wire.errors import ConfigError, ShoalError
from wire.messages import Offer
from wire.pieces import MOST_BYTES, WINDOW

log = logging.getLogger("shoal.aggregator")

SUFFIX = ".part"
IDLE_S = 900.0
"""Seconds without a piece after which an update is deleted."""
TIMES = 32
"""Maximum size of all updates together, as a multiple of the maximum size of one."""


class NoRoom(ShoalError):
    """No room for another update, in the limit or on the disk."""


@dataclass
class _Coming:
    """Update of which pieces are still missing."""

    offer: Offer | None
    part: PartFile | None
    num_bytes: int
    heard_s: float


class Assembly:
    """Incomplete updates in a folder, at most one per device.

    They survive a restart, since each piece is recognised by its hash.
    """

    def __init__(
        self, folder: Path, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the folder, which is made if absent.

        `most_bytes`: maximum size of one update. `clock`: Unix time (s).

        Raises:
            ConfigError: the folder cannot be made.
        """
        self._folder, self.most_bytes, self._clock = folder, most_bytes, clock
        self._coming: dict[str, _Coming] = {}
        try:
            make_folder(folder)
            for path in folder.glob("*" + SUFFIX):
                status = path.stat()
                self._coming[path.name.removesuffix(SUFFIX)] = _Coming(
                    None, None, status.st_size, status.st_mtime
                )
        except OSError as error:
            raise ConfigError(file_error(f"folder {folder}", error)) from None

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all incomplete updates."""
        return sum(coming.num_bytes for coming in self._coming.values())

    def offer_of(self, device_id: str) -> Offer | None:
        """Return the last offer of a device, or None if there is none."""
        coming = self._coming.get(device_id)
        return coming.offer if coming is not None else None

    def begin(self, offer: Offer) -> None:
        """Start to receive an offered update, or continue it; another one of the device is deleted.

        Raises:
            NoRoom: there is no room for it now.
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
        leftover = self._coming.get(offer.device_id)
        if (
            self.num_bytes - (leftover.num_bytes if leftover else 0) + offer.pieces.num_bytes
            > TIMES * self.most_bytes
        ):
            raise NoRoom(
                f"no room for an update of {offer.pieces.num_bytes} bytes: other updates in pieces "
                f"take {self.num_bytes}"
            )
        try:
            part = PartFile(self._path(offer.device_id), offer.pieces)
        except OSError as error:
            raise NoRoom(file_error(self._path(offer.device_id), error)) from None
        self._coming[offer.device_id] = _Coming(offer, part, offer.pieces.num_bytes, self._clock())

    def put(self, device_id: str, update: str, index: int, payload: bytes) -> bool:
        """Write a piece of an update; return False if its bytes are not those that were offered.

        A piece of another update than the offered one is ignored, with True.

        Raises:
            NoRoom: the piece cannot be written.
        """
        coming = self._coming.get(device_id)
        if coming is None or coming.part is None or coming.part.pieces.digest != update:
            return True
        coming.heard_s = self._clock()
        try:
            return coming.part.put(index, payload)
        except OSError as error:
            raise NoRoom(file_error(self._path(device_id), error)) from None

    def wanted(self, device_id: str) -> tuple[int, ...]:
        """Return the pieces that a device is to send next; empty if none is missing.

        There are at most `wire.pieces.WINDOW`.
        """
        coming = self._coming.get(device_id)
        return (
            tuple(islice(coming.part.missing, WINDOW))
            if coming is not None and coming.part is not None
            else ()
        )

    def take(self, device_id: str) -> bytes | None:
        """Return all bytes of a complete update, or None if their hash is not the offered one.

        The update stays until `drop`.

        Raises:
            NoRoom: it cannot be read.
        """
        part = self._coming[device_id].part
        assert part is not None
        try:
            payload = part.path.read_bytes()
        except OSError as error:
            raise NoRoom(file_error(self._path(device_id), error)) from None
        return payload if digest_of(payload) == part.pieces.digest else None

    def drop(self, device_id: str) -> None:
        """Delete the update of a device."""
        if self._coming.pop(device_id, None) is not None:
            try:
                self._path(device_id).unlink(missing_ok=True)
            except OSError as error:
                path = self._path(device_id)
                log.warning("Pieces not deleted: file=%s: %s", path, error.strerror)

    def _path(self, device_id: str) -> Path:
        return self._folder / f"{device_id}{SUFFIX}"
