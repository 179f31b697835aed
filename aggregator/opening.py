"""Opening of a service: state of its folder and database, read and checked before any change."""

import secrets
from dataclasses import dataclass, field, replace

import msgspec

from aggregator.aggregation.stored import check_fit
from aggregator.core.settings import RunSettings
from aggregator.fleet.records import Campaign, Fleet
from aggregator.leadership.identity import service_signer, steady_clock
from aggregator.service.place import ServiceStorage
from aggregator.service.start import (
    Exported,
    check_retuned,
    read_exported,
    read_trust,
    refuse_lost_run,
    run_secret,
    run_settings,
)
from aggregator.service_settings import ServeSettings
from aggregator.storage.charter import Charter, accept, charters, next_number, propose
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import load_fleet
from algorithms.algorithm import Algorithm
from algorithms.composition import make_algorithm
from host.files import file_error, write_atomically
from host.native.arithmetic import NativeArithmetic
from wire.errors import ConfigError


@dataclass
class Opening:
    """State of a service before it starts.

    Until `begin`, only the service's keys are written, and nothing is sent.
    """

    place: ServiceStorage
    charters: dict[str, Charter]
    """Charters of the folder's campaigns, by name."""
    exported: Exported | None
    """Files of the campaign that the service was started with; None if there is none."""
    fresh: RunSettings | None
    """Settings of that campaign; None if there is none."""
    fleet: Fleet = field(default_factory=Fleet)
    """Fleet as it is stored."""

    @classmethod
    def read(cls, settings: ServeSettings) -> "Opening":
        """Read the folder, and make the checks of the given campaign that need no stored state.

        Raises:
            ConfigError: the folder or the campaign cannot be opened.
        """
        folder, database = (
            settings.folder,
            settings.database or sqlite_url(settings.folder / "shoal.db"),
        )
        algorithm = cls._algorithm(settings)
        place = ServiceStorage(
            folder, database, read_trust(settings.bundle or folder), settings.blobs
        )
        exported, fresh = None, None
        if settings.bundle is not None:
            exported = read_exported(settings.bundle, place.trust)
            fresh = run_settings(settings, exported.bundle, secrets.token_hex(16))
            check_fit(fresh, algorithm, exported.bundle.manifest)
        return cls(place, charters(folder), exported, fresh)

    def look(self, settings: ServeSettings) -> bytes:
        """Read the stored state of the campaigns, and return the secret of the server's noise.

        The secret is empty if no noise is drawn here.

        Raises:
            ConfigError: the campaign that the service is started with cannot go on with these
            settings.
        """
        self.fleet = load_fleet(self.place.database) or Fleet()
        service_signer(
            settings.folder,
            settings.fleet,
            self.place.trust.keys,
            self.place.trust.root,
            steady_clock(self.last_s)(),
        )
        if self.fresh is None:
            return b""
        stored, algorithm = self.stored(settings.run), self._algorithm(settings)
        if stored is None:
            assert self.exported is not None
            place = self.place
            args = (place.database, self.fresh, algorithm, self.exported, place.folder, place.blobs)
            refuse_lost_run(*args)
        else:
            check_retuned(
                stored.next_settings,
                msgspec.structs.replace(self.fresh, run_id=stored.settings.run_id),
                settings.folder,
            )
        secret = run_secret(settings.folder, settings.run, stored is not None, algorithm)
        return secret if algorithm.privacy.server_noise else b""

    @staticmethod
    def _algorithm(settings: ServeSettings) -> Algorithm:
        algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
        return replace(algorithm, accelerator=settings.accelerator)

    def begin(self, settings: ServeSettings) -> None:
        """Add the campaign that the service is started with to the folder, and store trust keys.

        Raises:
            ConfigError: a file cannot be read or written.
        """
        if self.fresh is None or settings.bundle is None:
            return
        if settings.run not in self.charters:
            stored = self.stored(settings.run)
            campaign_settings = stored.settings if stored is not None else self.fresh
            self.charters[settings.run] = Charter(
                next_number(settings.folder), campaign_settings, start_from=settings.start_from
            )
            propose(settings.folder, self.charters[settings.run], settings.bundle)
            accept(settings.folder, settings.run)
            self.place.share(self.charters[settings.run])
        trust_file = settings.folder / "trust.pem"  # for later starts without a bundle
        try:
            payload = (settings.bundle / "trust.pem").read_bytes()
            if not trust_file.exists() or trust_file.read_bytes() != payload:
                write_atomically(trust_file, payload)
        except OSError as error:
            raise ConfigError(file_error(f"folder {settings.folder}: trust.pem", error)) from None

    def stored(self, name: str) -> Campaign | None:
        """Return the stored record of a campaign, or None if it has not begun."""
        return self.fleet.campaigns.get(name)

    @property
    def last_s(self) -> float:
        """Latest stored time (s)."""
        return self.fleet.at_s
