"""Charters of campaigns: a folder ``campaigns/NAME`` has settings, bundle and probe of each."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aggregator.core.settings import RunSettings
from host.files import file_error, make_folder, sync_folder, write_atomically
from wire.errors import ConfigError
from wire.topics import check_name

CAMPAIGNS = "campaigns"
RELEASES = "releases"
"""Name of the folder with the blobs of releases, which may outlive those of their campaigns."""
BUNDLES = "bundles"
"""Name of the folder for `FILES` among blobs that several services share."""
FILES = ("device.shoal", "server.pt2")
"""Files of `shoal export` that a campaign needs."""
_CHARTER, _WANTED = "campaign.json", ".wanted-"
LATEST, INITIAL = "latest", "initial"
"""Values of `Charter.start_from` that are not names of campaigns."""


class Charter(msgspec.Struct, frozen=True):
    """Settings and origin with which a campaign started."""

    number: int
    """Number of the campaign in its folder, from 1 in the order of acceptance; 0 before."""
    settings: RunSettings
    """Settings at the start; the present ones are in the database."""
    where: str = ""
    """Rule for the devices that may take part; empty: all."""
    start_from: str = LATEST
    """Source of the initial models: a campaign's name, ``latest`` or ``initial``.

    ``latest`` is what the fleet has released, or else the latest campaign that has trained;
    ``initial`` is the bundle's weights.
    """


def check_campaign_name(name: str) -> str:
    """Return the name if a campaign and a folder may have it.

    Raises:
        ConfigError: it is not allowed.
    """
    if check_name(name, "campaign's name").startswith("."):
        raise ConfigError(f"campaign's name must not begin with a dot, got {name!r}")
    if name in (RELEASES, BUNDLES):
        raise ConfigError(f"campaign's name {name!r} is reserved; choose another")
    return name


def charters(folder: Path) -> dict[str, Charter]:
    """Return the charters of a service's folder by campaign, in the order of their numbers.

    Raises:
        ConfigError: one cannot be read.
    """
    paths = sorted((folder / CAMPAIGNS).glob(f"[!.]*/{_CHARTER}"))
    pairs = [(path.parent.name, _read(path)) for path in paths]
    return dict(sorted(pairs, key=lambda pair: (pair[1].number, pair[0])))


def next_number(folder: Path) -> int:
    """Return the number of the campaign that starts next."""
    return max((charter.number for charter in charters(folder).values()), default=0) + 1


def write_charter(folder: Path, charter: Charter) -> None:
    """Write a charter in place of the campaign's earlier one.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        write_atomically(
            campaign_folder(folder, charter.settings.name) / _CHARTER, msgspec.json.encode(charter)
        )
    except OSError as error:
        raise ConfigError(
            file_error(
                f"campaign {charter.settings.name} in {folder}: its charter cannot be written",
                error,
            )
        ) from None


def propose(folder: Path, charter: Charter, exported: Path) -> None:
    """Write a proposed campaign with files of `shoal export`, without effect until `accept`.

    `exported`: path of the folder that `shoal export` wrote.

    Raises:
        ConfigError: a file cannot be read or written.
    """
    try:
        files = {name: (exported / name).read_bytes() for name in FILES}
    except OSError as error:
        raise ConfigError(file_error(f"bundle {exported}: {error.filename}", error)) from None
    propose_files(folder, charter, files)


def propose_files(folder: Path, charter: Charter, files: Mapping[str, bytes]) -> None:
    """Write a proposed campaign, without effect until `accept`.

    `files`: contents of `FILES` by name.

    Raises:
        ConfigError: a file cannot be written.
    """
    wanted = folder / CAMPAIGNS / (_WANTED + charter.settings.name)
    try:
        shutil.rmtree(wanted, ignore_errors=True)
        make_folder(wanted)
        for name, payload in files.items():
            write_atomically(wanted / name, payload)
        write_atomically(wanted / _CHARTER, msgspec.json.encode(charter))
    except OSError as error:
        raise ConfigError(
            file_error(f"campaign {charter.settings.name} in {folder}: it cannot be written", error)
        ) from None


def proposed(folder: Path, name: str) -> tuple[Path, Charter]:
    """Return the folder and the charter of a proposed campaign.

    Raises:
        ConfigError: there is none.
    """
    wanted = folder / CAMPAIGNS / (_WANTED + name)
    return wanted, _read(wanted / _CHARTER)


def accept(folder: Path, name: str) -> Charter:
    """Make a proposed campaign one of this folder's, with the next number; return its charter.

    Raises:
        ConfigError: the folder has a campaign of this name already, or cannot be written.
    """
    place, (wanted, charter) = campaign_folder(folder, name), proposed(folder, name)
    try:
        if place.exists():
            raise ConfigError(f"Campaign name {name!r} is taken in {folder}. Choose another.")
        if not charter.number:
            charter = msgspec.structs.replace(charter, number=next_number(folder))
            write_atomically(wanted / _CHARTER, msgspec.json.encode(charter))
        wanted.rename(place)
        sync_folder(place.parent)
    except OSError as error:
        raise ConfigError(
            file_error(f"campaign {name} in {folder}: it cannot be written", error)
        ) from None
    return charter


def campaign_folder(folder: Path, name: str) -> Path:
    """Return the path of a campaign's folder."""
    return folder / CAMPAIGNS / name


def _read(path: Path) -> Charter:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Charter)
    except OSError as error:
        raise ConfigError(file_error(f"campaign's charter {path}", error)) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"campaign's charter {path}: damaged: {error}; restore it from a backup"
        ) from None
