"""Check of the blobs of a campaign: each has its hash, and none that it needs is missing."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from aggregator.fleet.events import UpdatesLost
from aggregator.fleet.records import Fleet
from aggregator.maintenance.database import Contents, carry_out
from aggregator.maintenance.finding import RESTORE, Finding
from aggregator.storage.blob_folder import DAMAGED, DIGEST, BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from aggregator.transfer.offered import needed
from aggregator.view.round_record import RoundRecord
from wire.codec import digest as digest_of

HALF_WRITTEN = re.compile(r".*\.new")
"""Pattern of files that an interrupted write leaves."""


class Need(NamedTuple):
    """Use of a blob."""

    kind: Literal["bundle", "model", "memory", "update", "survey", "views", "earlier", "assigned"]
    which: str = ""
    """Key of a model, id of a device, or number of a round."""

    def __str__(self) -> str:
        return {
            "bundle": "the bundle",
            "model": f"the model {self.which}",
            "memory": "the algorithm's memory",
            "update": f"the update of device {self.which}",
            "survey": f"the survey of device {self.which}",
            "assigned": "a model that devices are at work on or take up",
            "views": f"the distance matrix of round {self.which}",
            "earlier": f"a part of the models of round {self.which}",
        }[self.kind]


def needs(fleet: Fleet, name: str, records: Sequence[RoundRecord]) -> dict[str, list[Need]]:
    """Return the uses of each blob that a campaign needs, by its digest."""
    campaign, uses = fleet.campaigns[name], dict[str, list[Need]]()
    version = campaign.version
    named = [(campaign.settings.bundle, Need("bundle"))]
    named += [(version.memory, Need("memory"))] if version.memory else []
    named += [(model, Need("model", key)) for key, model in version.models.items()]
    if campaign.phase != "finished":
        named += [(u.blob, Need("update", device_id)) for device_id, u in campaign.updates.items()]
    named += [
        (member.survey.blob, Need("survey", device_id))
        for device_id, member in campaign.members.items()
        if member.survey is not None
    ]
    for earlier in campaign.history:
        digests = (*earlier.models.values(), *filter(None, [earlier.memory]))
        named += [(digest, Need("earlier", str(earlier.round))) for digest in digests]
    named += [
        (record.views, Need("views", str(record.round))) for record in records if record.views
    ]
    for digest, need in named:
        uses.setdefault(digest, []).append(need)
    for digest in needed(campaign, fleet) - uses.keys():
        uses[digest] = [Need("assigned")]
    return uses


def look(
    blobs: Path, where: str, uses: Mapping[str, Sequence[object]], mend: bool
) -> tuple[list[Finding], set[str]]:
    """Examine every file of a folder of blobs; return findings, and digests of the undamaged blobs.

    `where`: name of the folder in findings. `uses`: by digest, the uses of a blob.
    """
    findings, whole = list[Finding](), set[str]()
    for path in sorted(blobs.iterdir()) if blobs.is_dir() else ():
        place = f"{where}/{path.name}"
        if path.is_file() and DIGEST.fullmatch(path.name):
            place, problem = f"{where}/{path.name[:12]}", problem_of(path)
            use = " and ".join(map(str, uses.get(path.name, ()))) or "nothing needs it"
            if problem is None:
                whole.add(path.name)
            elif not path.exists():
                pass  # a running service has deleted it
            elif not mend:
                text = f"{problem}; {use}. `--mend` sets it aside"
                findings.append(Finding("wrong", place, text))
            else:
                try:
                    path.replace(path.with_name(path.name + DAMAGED))
                except OSError as error:
                    text = f"{problem}; it cannot be set aside: {error.strerror}"
                    findings.append(Finding("wrong", place, text))
                else:
                    text = f"{problem}; set aside as {path.name[:12]}...{DAMAGED}; {use}"
                    findings.append(Finding("mended", place, text))
        elif path.name.endswith(DAMAGED):
            text = "a damaged blob that was set aside earlier; it may be deleted"
            findings.append(Finding("note", place, text))
        elif HALF_WRITTEN.fullmatch(path.name) and path.is_file():
            findings.append(leftover(path, place, mend))
        else:
            findings.append(Finding("note", place, "no file of Shoal's"))
    return findings, whole


@dataclass(frozen=True)
class BlobCheck:
    """Check of the folder with one campaign's blobs."""

    folder: Path
    """Folder of the service."""
    name: str
    contents: Contents
    bundle: bytes
    """Contents of the bundle's file, which replaces a missing bundle; empty if there is none."""
    mend: bool
    again: Callable[[], Contents]
    """Reads the database anew, since a service may have changed it meanwhile."""

    def findings(self) -> Iterator[Finding]:
        """Yield findings on every file, then on every needed blob."""
        blobs, where, wanted = (
            self.folder / "blobs" / self.name,
            f"blobs/{self.name}",
            self._needs(self.contents),
        )
        file_findings, whole = look(blobs, where, wanted, self.mend)
        yield from file_findings
        missing = wanted.keys() - whole
        if missing and not self.mend:
            current = self._needs(self.again())
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
                f"{len(whole)} blobs are undamaged; all {len(wanted)} that the campaign needs are "
                "among them",
            )

    def _needs(self, contents: Contents) -> dict[str, list[Need]]:
        fleet = contents.fleet
        if fleet is None or self.name not in fleet.campaigns:
            return {}
        return needs(fleet, self.name, contents.records.get(self.name, []))

    def _missing(self, name: str, need: Need) -> Finding:
        where = f"blobs/{self.name}/{name[:12]}"
        loss = f"{need} is lost"
        match need.kind:
            case "update" | "survey":
                return self._ask_again(where, need)
            case "views":
                if self.mend:
                    self._take_views_off(int(need.which))
                    return Finding(
                        "mended",
                        where,
                        f"{loss}: only people looked at it; the round's record does not name it "
                        "any more",
                    )
                return Finding(
                    "wrong",
                    where,
                    f"{loss}: only people look at it. `--mend` takes it off the round's record",
                )
            case "earlier":
                return Finding(
                    "wrong",
                    where,
                    f"{loss}: the campaign goes on, but cannot return to that round. "
                    f"{RESTORE[0].upper()}{RESTORE[1:]}",
                )
            case "bundle":
                return self._restore_bundle(where, name, loss)
        return Finding(
            "wrong",
            where,
            f"{loss}: the campaign cannot go on, and nothing here can make it again. "
            f"{RESTORE[0].upper()}{RESTORE[1:]}",
        )

    def _take_views_off(self, number: int) -> None:
        """Remove the digest of the distances from a round's record."""
        with closing(FleetStore(sqlite_url(self.folder / "shoal.db"))) as store:
            fleet, records = store.load(), store.rounds(self.name, number - 1, number)
            changed = [(self.name, replace(record, views="")) for record in records]
            store.commit(fleet, fleet, set(), (), changed)

    def _ask_again(self, where: str, need: Need) -> Finding:
        if not self.mend:
            text = (
                f"{need} is lost: the service asks the device for it again when it needs it. "
                "`--mend` does so now"
            )
            return Finding("wrong", where, text)
        assert self.contents.fleet is not None
        at_s, lost = self.contents.fleet.at_s, (need.which,)
        carry_out(self.folder, UpdatesLost(at_s=at_s, campaign=self.name, device_ids=lost))
        text = f"{need} was lost: the device is asked for it again when the service starts"
        return Finding("mended", where, text)

    def _restore_bundle(self, where: str, name: str, problem: str) -> Finding:
        how = (
            "`shoal doctor --mend --bundle FOLDER`, with the folder that `shoal export` wrote, "
            "restores it"
        )
        if not self.bundle:
            return Finding("wrong", where, f"{problem}: new devices cannot begin. {how}")
        if digest_of(self.bundle) != name:
            return Finding(
                "wrong",
                where,
                f"{problem}, and --bundle has another bundle, {digest_of(self.bundle)[:12]}. {how}",
            )
        if not self.mend:
            return Finding(
                "wrong",
                where,
                f"{problem}: new devices cannot begin. `--mend` copies it from --bundle",
            )
        BlobFolder(self.folder / "blobs" / self.name).put(self.bundle)
        return Finding("mended", where, "the bundle was lost: it is copied from --bundle")


def leftover(path: Path, where: str, mend: bool) -> Finding:
    """Return the finding on a half-written file, which is deleted with `mend`."""
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
    """Return the fault of a blob's file, or None if it has its hash."""
    try:
        return (
            None
            if digest_of(path.read_bytes()) == path.name
            else "damaged: its bytes do not match its hash"
        )
    except OSError as error:
        return f"not readable: {error.strerror}"
