"""What a service opens: read and checked before anything is changed."""

import secrets
from dataclasses import dataclass, field

import msgspec

from aggregator.aggregation.stored import check_fit
from aggregator.core.round.dismissal import opened
from aggregator.core.settings import RunSettings
from aggregator.core.state import RunState
from aggregator.leadership.identity import service_signer, steady_clock
from aggregator.service.place import Place
from aggregator.service.start import (
    Exported,
    check_retuned,
    read_exported,
    read_trust,
    refuse_lost_run,
    run_secret,
    run_settings,
    write_trust,
)
from aggregator.service_settings import ServeSettings
from aggregator.storage.charter import Charter, accept, charters, next_number, propose
from aggregator.storage.choice import kept_blobs
from aggregator.storage.engine import sqlite_url
from aggregator.storage.sql_store import load_run
from algorithms.composition import make_algorithm
from host.native.arithmetic import NativeArithmetic


@dataclass
class Opening:
    """What a service opens. Nothing but the folder's own charters is changed, and nobody is
    disturbed."""

    place: Place
    known: dict[str, Charter]
    """The campaigns of the folder."""
    exported: Exported | None
    """Of the campaign that the service was started with."""
    fresh: RunSettings | None
    """That campaign's settings."""
    states: dict[str, RunState | None] = field(default_factory=dict)

    @classmethod
    def read(cls, settings: ServeSettings) -> "Opening":
        """Read the folder, and check the campaign that the service is started with as far as that
        needs no state of it.

        Raises:
            ConfigError: it cannot be opened.
        """
        folder, database = (
            settings.folder,
            settings.database or sqlite_url(settings.folder / "shoal.db"),
        )
        place = Place(folder, database, read_trust(settings.bundle or folder), settings.blobs)
        exported, fresh = None, None
        if settings.bundle is not None:
            exported = read_exported(settings.bundle, place.trust)
            fresh = run_settings(settings, exported.bundle, secrets.token_hex(16))
            algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
            check_fit(fresh, algorithm, exported.bundle.manifest)
            refuse_lost_run(
                database,
                fresh,
                algorithm,
                exported,
                *kept_blobs(settings.blobs, folder, settings.run),
            )
        return cls(place, charters(folder), exported, fresh)

    def look(self, settings: ServeSettings) -> bytes:
        """Read where the campaigns stand; returns what their noise is drawn from, if it is drawn
        here.

        Raises:
            ConfigError: the campaign that the service is started with cannot go on with these
            settings.
        """
        names = [
            *self.known,
            *([settings.run] if self.fresh is not None and settings.run not in self.known else []),
        ]
        self.states = {name: load_run(self.place.database, name) for name in names}
        service_signer(
            settings.folder,
            settings.fleet,
            self.place.trust.keys,
            self.place.trust.root,
            steady_clock(self.last_s)(),
        )
        if self.fresh is None:
            return b""
        stored = self.states[settings.run]
        if stored is not None:
            check_retuned(
                stored.next_settings,
                msgspec.structs.replace(self.fresh, run_id=stored.settings.run_id),
                settings.folder,
            )
        algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
        secret = run_secret(settings.folder, settings.run, stored is not None, algorithm)
        return secret if algorithm.privacy.server_noise else b""

    def exchange(self) -> None:
        """Learn of the campaigns that another service of the same database has started, once this
        one has the lease."""
        self.known = self.place.exchange()

    def begin(self, settings: ServeSettings) -> None:
        """Let the campaign that the service is started with be one of the folder's."""
        if self.fresh is None or settings.bundle is None:
            return
        if settings.run not in self.known:
            stored = self.states[settings.run]
            begun = stored.settings if stored is not None else self.fresh
            self.known[settings.run] = Charter(
                next_number(settings.folder), begun, start_from=settings.start_from
            )
            propose(settings.folder, self.known[settings.run], settings.bundle)
            accept(settings.folder, settings.run)
            self.place.share(self.known[settings.run])
        write_trust(settings.folder, settings.bundle)

    def charters(self, own: str) -> list[Charter]:
        """Those of the campaigns that are opened; `own` is one of them if it is known."""
        wanted = {*opened({name: self.states[name] for name in self.known}), own}
        return [charter for name, charter in self.known.items() if name in wanted]

    @property
    def last_s(self) -> float:
        """The latest second that is stored."""
        return max((state.at_s for state in self.states.values() if state is not None), default=0.0)

    @property
    def last_epoch(self) -> int:
        """The greatest epoch that is stored."""
        return max((state.epoch for state in self.states.values() if state is not None), default=0)
