"""Checks the blobs of a run: that each has its hash, and that each that the run's state names is
there."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from aggregator.core.round.machine import OPEN
from aggregator.core.state import UpdatesLost
from aggregator.maintenance.database import Contents, SavedRun
from aggregator.maintenance.finding import RESTORE, Finding
from aggregator.storage.blob_folder import DAMAGED, DIGEST, BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.sql_store import SqlStore
from wire.codec import digest as digest_of

HALF_WRITTEN = re.compile(r".*\.new")
"""What an interrupted write leaves."""


class Need(NamedTuple):
    """For what a blob is needed."""

    kind: Literal["bundle", "model", "memory", "update", "views", "earlier"]
    which: str = ""
    """A model's key, a device's id, or a round's number."""

    def __str__(self) -> str:
        return {
            "bundle": "the bundle",
            "model": f"the model {self.which}",
            "memory": "what the algorithm remembers",
            "update": f"the update of device {self.which}",
            "views": f"the distances of round {self.which}",
            "earlier": f"a part of the models of round {self.which}",
        }[self.kind]


def needs(run: SavedRun) -> dict[str, list[Need]]:
    """By digest, for what each blob is needed."""
    state, found = run.state, dict[str, list[Need]]()
    if state is None:
        return found
    named = [
        (state.settings.bundle, Need("bundle")),
        (state.memory, Need("memory")),
        *((model, Need("model", key)) for key, model in state.models.items()),
    ]
    named += [
        (flight.model, Need("model", flight.start))
        for flight in (*state.flights.values(), *state.placing.values())
    ]
    if state.phase != "finished":
        named += [
            (received.blob, Need("update", device_id))
            for device_id, received in state.received.items()
        ]
        named += [
            (told.blob, Need("update", device_id)) for device_id, told in state.inputs.items()
        ]
    for version in state.history:
        named += [
            (name, Need("earlier", str(version.round)))
            for name in (*version.models.values(), version.memory)
        ]
    named += [
        (record.views, Need("views", str(record.round))) for record in run.records if record.views
    ]
    for name, need in named:
        found.setdefault(name, []).append(need)
    return found


def look(
    blobs: Path, where: str, uses: Mapping[str, Sequence[object]], mend: bool
) -> tuple[list[Finding], set[str]]:
    """Look at every file of a folder of blobs. Returns the findings, and the digests of the blobs
    that are whole. `where`: the folder's name in findings. `uses`: by digest, the uses of a blob.
    """
    found, whole = list[Finding](), set[str]()
    for path in sorted(blobs.iterdir()) if blobs.is_dir() else ():
        place = f"{where}/{path.name}"
        if path.is_file() and DIGEST.fullmatch(path.name):
            place, problem = f"{where}/{path.name[:12]}", problem_of(path)
            use = " and ".join(map(str, uses.get(path.name, ()))) or "nothing needs it"
            if problem is None:
                whole.add(path.name)
            elif not path.exists():
                pass  # a service that is running has taken it away
            elif not mend:
                text = f"{problem}; {use}. `--mend` sets it aside"
                found.append(Finding("wrong", place, text))
            else:
                try:
                    path.replace(path.with_name(path.name + DAMAGED))
                except OSError as error:
                    text = f"{problem}, and it cannot be set aside: {error.strerror}"
                    found.append(Finding("wrong", place, text))
                else:
                    text = f"{problem}; it is {path.name[:12]}...{DAMAGED} now; {use}"
                    found.append(Finding("mended", place, text))
        elif path.name.endswith(DAMAGED):
            text = (
                "a damaged blob that was set aside earlier; delete it when nobody wants to look at "
                "it"
            )
            found.append(Finding("note", place, text))
        elif HALF_WRITTEN.fullmatch(path.name) and path.is_file():
            found.append(leftover(path, place, mend))
        else:
            found.append(Finding("note", place, "nothing of Shoal's"))
    return found, whole


@dataclass(frozen=True)
class BlobCheck:
    """Checks the folder of one run's blobs."""

    folder: Path
    """Folder of the service."""
    name: str
    run: SavedRun
    bundle: bytes
    """Bytes of a bundle that may be missing."""
    mend: bool
    again: Callable[[], Contents]
    """Reads the database anew: a service may have changed it meanwhile."""

    def findings(self) -> Iterator[Finding]:
        """Look at every file, then for every blob that is needed."""
        blobs, where, wanted = (
            self.folder / "blobs" / self.name,
            f"blobs/{self.name}",
            needs(self.run),
        )
        found, whole = look(blobs, where, wanted, self.mend)
        yield from found
        missing = wanted.keys() - whole
        if missing and not self.mend and (now := self.again().runs.get(self.name)) is not None:
            current = needs(now)
            missing = {
                name for name in missing & current.keys() if problem_of(blobs / name) is not None
            }
        for name in sorted(missing):
            for need in wanted[name]:
                yield self._missing(name, need)
        if not missing:
            yield Finding(
                "ok",
                where,
                f"{len(whole)} blobs are whole, and none of the {len(wanted)} that the run needs "
                "is missing",
            )

    def _missing(self, name: str, need: Need) -> Finding:
        where = f"blobs/{self.name}/{name[:12]}"
        told = f"{need} is lost"
        match need.kind:
            case "update":
                return self._ask_again(where, need.which)
            case "views":
                if self.mend:
                    with closing(
                        SqlStore(sqlite_url(self.folder / "shoal.db"), self.name)
                    ) as store:
                        records = [r for r in store.rounds() if str(r.round) == need.which]
                        store.commit([], [replace(record, views="") for record in records])
                    return Finding(
                        "mended",
                        where,
                        f"{told}: only people looked at them; the round's record does not name "
                        "them any more",
                    )
                return Finding(
                    "wrong",
                    where,
                    f"{told}: only people look at them. `--mend` takes them off the round's record",
                )
            case "earlier":
                return Finding(
                    "wrong",
                    where,
                    f"{told}: the run goes on, but cannot return to that round. "
                    f"{RESTORE[0].upper()}{RESTORE[1:]}",
                )
            case "bundle":
                return self._restore_bundle(where, name, told)
        return Finding(
            "wrong",
            where,
            f"{told}: the run cannot go on, and nothing here can make it again. "
            f"{RESTORE[0].upper()}{RESTORE[1:]}",
        )

    def _ask_again(self, where: str, device_id: str) -> Finding:
        told = (
            f"the update of device {device_id} is lost: its round cannot be aggregated without "
            "asking for it again"
        )
        if not self.mend:
            return Finding(
                "wrong",
                where,
                f"{told}. The service does so by itself when it needs it; so does `--mend`, now",
            )
        with closing(SqlStore(sqlite_url(self.folder / "shoal.db"), self.name)) as store:
            now = store.load()
            assert now is not None
            if now.phase in (*OPEN, "aggregating"):
                store.commit([UpdatesLost(now.at_s, now.round, (device_id,))])
        return Finding(
            "mended",
            where,
            f"the update of device {device_id} was lost: it is asked for again when the service "
            "starts",
        )

    def _restore_bundle(self, where: str, name: str, told: str) -> Finding:
        how = (
            "`shoal doctor --mend --bundle FOLDER`, with the folder that `shoal export` wrote, "
            "restores it"
        )
        if not self.bundle:
            return Finding("wrong", where, f"{told}: new devices cannot begin. {how}")
        if digest_of(self.bundle) != name:
            return Finding(
                "wrong",
                where,
                f"{told}, and --bundle has another one, {digest_of(self.bundle)[:12]}. {how}",
            )
        if not self.mend:
            return Finding(
                "wrong",
                where,
                f"{told}: new devices cannot begin. `--mend` copies it from --bundle",
            )
        BlobFolder(self.folder / "blobs" / self.name).put(self.bundle)
        return Finding("mended", where, "the bundle was lost: it is copied from --bundle")


def leftover(path: Path, where: str, mend: bool) -> Finding:
    """A half-written file: deleted, if it is to be mended."""
    if not mend:
        return Finding(
            "note", where, "left over from a write that was interrupted; `--mend` deletes it"
        )
    try:
        path.unlink()
    except OSError as error:
        return Finding(
            "note",
            where,
            "left over from a write that was interrupted, and it cannot be deleted: "
            f"{error.strerror}",
        )
    return Finding("mended", where, "left over from a write that was interrupted; it is deleted")


def problem_of(path: Path) -> str | None:
    """What is wrong with a blob's file; None if it has its hash."""
    try:
        return (
            None
            if digest_of(path.read_bytes()) == path.name
            else "its bytes are not those that were written"
        )
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
