"""Checks the blobs of a run: that each has its hash, and that each that the run's state names is
there."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from aggregator.core.round.machine import OPEN
from aggregator.core.state import UpdatesLost
from aggregator.maintenance.database import SavedRun
from aggregator.maintenance.finding import RESTORE, Finding
from aggregator.storage.blob_folder import DAMAGED, BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.sql_store import SqlStore
from wire.codec import digest as digest_of

_DIGEST = re.compile(r"[0-9a-f]{64}")
HALF_WRITTEN = re.compile(r".*\.new|check\.[0-9]+")
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


class BlobCheck:
    """Checks the folder of one run's blobs. `bundle`: the bytes of a bundle that may be missing;
    `again` reads the run anew where a service may have changed it meanwhile."""

    def __init__(
        self,
        folder: Path,
        name: str,
        run: SavedRun,
        bundle: bytes,
        mend: bool,
        again: Callable[[], SavedRun | None],
    ) -> None:
        self._folder, self._name, self._run, self._bundle, self._mend, self._again = (
            folder,
            name,
            run,
            bundle,
            mend,
            again,
        )
        self._blobs = folder / "blobs" / name
        self._where = f"blobs/{name}"

    def findings(self) -> Iterator[Finding]:
        """Look at every file, then for every blob that is needed."""
        wanted, whole = needs(self._run), set()
        for path in sorted(self._blobs.iterdir()) if self._blobs.is_dir() else ():
            if not path.is_file() or not _DIGEST.fullmatch(path.name):
                yield from self._other(path)
            elif (problem := problem_of(path)) is None:
                whole.add(path.name)
            elif path.exists():  # a service that is running may have taken it away
                yield self._damaged(path, problem, wanted.get(path.name, []))
        missing = wanted.keys() - whole
        if missing and (now := self._again()) is not None:
            current = needs(now)
            missing = {
                name
                for name in missing & current.keys()
                if problem_of(self._blobs / name) is not None
            }
        for name in sorted(missing):
            for need in wanted[name]:
                yield self._missing(name, need)
        if not missing:
            yield Finding(
                "ok",
                self._where,
                f"{len(whole)} blobs are whole, and none of the {len(wanted)} that the run needs "
                "is missing",
            )

    def _other(self, path: Path) -> Iterator[Finding]:
        where = f"{self._where}/{path.name}"
        if path.name.endswith(DAMAGED):
            yield Finding(
                "note",
                where,
                "a damaged blob that was set aside earlier; delete it when nobody wants to look "
                "at it",
            )
        elif HALF_WRITTEN.fullmatch(path.name) and path.is_file():
            yield leftover(path, where, self._mend)
        else:
            yield Finding("note", where, "nothing of Shoal's")

    def _damaged(self, path: Path, problem: str, wanted: list[Need]) -> Finding:
        where, use = (
            f"{self._where}/{path.name[:12]}",
            " and ".join(map(str, wanted)) or "nothing needs it",
        )
        if not self._mend:
            return Finding("wrong", where, f"{problem}; {use}. `--mend` sets it aside")
        try:
            path.replace(path.with_name(path.name + DAMAGED))
        except OSError as error:
            return Finding(
                "wrong", where, f"{problem}, and it cannot be set aside: {error.strerror}"
            )
        return Finding("mended", where, f"{problem}; it is {path.name[:12]}...{DAMAGED} now; {use}")

    def _missing(self, name: str, need: Need) -> Finding:
        where = f"{self._where}/{name[:12]}"
        told = f"{need} is lost"
        match need.kind:
            case "update":
                return self._ask_again(where, need.which)
            case "views":
                if self._mend:
                    self._forget_views(need.which)
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
        state = self._run.state
        assert state is not None
        if not self._mend:
            return Finding(
                "wrong",
                where,
                f"{told}. The service does so by itself when it needs it; so does `--mend`, now",
            )
        store = self._store()
        try:
            now = store.load()
            assert now is not None
            if now.phase in (*OPEN, "aggregating"):
                store.commit([UpdatesLost(now.at_s, now.round, (device_id,))])
        finally:
            store.close()
        return Finding(
            "mended",
            where,
            f"the update of device {device_id} was lost: it is asked for again when the service "
            "starts",
        )

    def _forget_views(self, number: str) -> None:
        store = self._store()
        try:
            store.commit(
                [],
                [
                    replace(record, views="")
                    for record in store.rounds()
                    if str(record.round) == number
                ],
            )
        finally:
            store.close()

    def _restore_bundle(self, where: str, name: str, told: str) -> Finding:
        how = (
            "`shoal doctor --mend --bundle FOLDER`, with the folder that `shoal export` wrote, "
            "restores it"
        )
        if not self._bundle:
            return Finding("wrong", where, f"{told}: new devices cannot begin. {how}")
        if digest_of(self._bundle) != name:
            return Finding(
                "wrong",
                where,
                f"{told}, and --bundle has another one, {digest_of(self._bundle)[:12]}. {how}",
            )
        if not self._mend:
            return Finding(
                "wrong",
                where,
                f"{told}: new devices cannot begin. `--mend` copies it from --bundle",
            )
        BlobFolder(self._blobs).put(self._bundle)
        return Finding("mended", where, "the bundle was lost: it is copied from --bundle")

    def _store(self) -> SqlStore:
        return SqlStore(sqlite_url(self._folder / "shoal.db"), self._name)


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
