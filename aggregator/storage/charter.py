"""What a service's folder says of its campaigns: for each a folder ``campaigns/NAME`` with its
charter, its bundle and its probe."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aggregator.core.settings import RunSettings
from host.files import make_folder, sync_folder, write_atomically
from wire.errors import ConfigError
from wire.topics import check_name

CAMPAIGNS = "campaigns"
RELEASES = "releases"
"""The folder in a service's folder with the blobs of releases: what a campaign forgets, a release
may still need."""
BUNDLES = "bundles"
"""The place of `FILES` among blobs that several services share."""
FILES = ("device.shoal", "server.pt2")
"""What `shoal export` wrote, as far as a campaign needs it."""
_CHARTER, _WANTED = "campaign.json", ".wanted-"
LATEST, INITIAL = "latest", "initial"
"""Values of `Charter.start_from` beside names of campaigns."""


class Charter(msgspec.Struct, frozen=True):
    """What a campaign was started with."""

    number: int
    """Counts the campaigns of a folder, from 1, in the order in which they were accepted; 0 until
    then."""
    settings: RunSettings
    """Those of its start; what it goes by now is in the database."""
    where: str = ""
    """Which devices it may ask; empty: all."""
    start_from: str = LATEST
    """Whose models it started from: a campaign's name, ``latest`` for what the fleet has released,
    else for the latest campaign that has trained, or ``initial`` for the bundle's weights."""


def check_campaign_name(name: str) -> str:
    """The name, if it may be a campaign's and a folder's.

    Raises:
        ConfigError: it may not.
    """
    if check_name(name, "campaign's name").startswith("."):
        raise ConfigError(f"campaign's name {name!r}: it may not begin with a dot")
    if name in (RELEASES, BUNDLES):
        raise ConfigError(f"campaign's name {name!r}: the service keeps something else under it")
    return name


def charters(folder: Path) -> dict[str, Charter]:
    """The charters of a service's folder, by name, in the order of their numbers.

    Raises:
        ConfigError: one cannot be read.
    """
    found = sorted((folder / CAMPAIGNS).glob(f"[!.]*/{_CHARTER}"))
    read = [(path.parent.name, _read(path)) for path in found]
    return dict(sorted(read, key=lambda pair: (pair[1].number, pair[0])))


def next_number(folder: Path) -> int:
    """The number of the campaign that starts next."""
    return max((charter.number for charter in charters(folder).values()), default=0) + 1


def write_charter(folder: Path, charter: Charter) -> None:
    """Put a charter in place of the one before.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        write_atomically(
            campaign_folder(folder, charter.settings.name) / _CHARTER, msgspec.json.encode(charter)
        )
    except OSError as error:
        raise ConfigError(
            f"campaign {charter.settings.name} in {folder}: its charter cannot be written: "
            f"{error.strerror}"
        ) from None


def propose(folder: Path, charter: Charter, exported: Path) -> None:
    """Lay down a campaign that is to start, with what `shoal export` wrote. It has no effect until
    `accept`.

    Raises:
        ConfigError: it cannot be read or written.
    """
    try:
        files = {name: (exported / name).read_bytes() for name in FILES}
    except OSError as error:
        raise ConfigError(f"bundle {exported}: {error.filename}: {error.strerror}") from None
    propose_files(folder, charter, files)


def propose_files(folder: Path, charter: Charter, files: Mapping[str, bytes]) -> None:
    """The same with the contents of `FILES`, by name.

    Raises:
        ConfigError: it cannot be written.
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
            f"campaign {charter.settings.name} in {folder}: it cannot be written: {error.strerror}"
        ) from None


def proposed(folder: Path, name: str) -> tuple[Path, Charter]:
    """The folder and the charter of a campaign that is to start.

    Raises:
        ConfigError: there is none.
    """
    wanted = folder / CAMPAIGNS / (_WANTED + name)
    return wanted, _read(wanted / _CHARTER)


def accept(folder: Path, name: str) -> Charter:
    """Let the campaign that is to start be one of this folder's, with the next number. Returns its
    charter.

    Raises:
        ConfigError: the folder has it already, or it cannot be written.
    """
    place, (wanted, charter) = campaign_folder(folder, name), proposed(folder, name)
    try:
        if place.exists():
            raise ConfigError(f"campaign {name} in {folder}: there is one of this name already")
        if not charter.number:
            charter = msgspec.structs.replace(charter, number=next_number(folder))
            write_atomically(wanted / _CHARTER, msgspec.json.encode(charter))
        wanted.rename(place)
        sync_folder(place.parent)
    except OSError as error:
        raise ConfigError(
            f"campaign {name} in {folder}: it cannot be written: {error.strerror}"
        ) from None
    return charter


def campaign_folder(folder: Path, name: str) -> Path:
    """Where a campaign's files lie."""
    return folder / CAMPAIGNS / name


def _read(path: Path) -> Charter:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Charter)
    except OSError as error:
        raise ConfigError(f"campaign's charter {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"campaign's charter {path}: {error}") from None
