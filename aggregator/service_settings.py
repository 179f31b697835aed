"""What a service and its campaigns are started with."""

from pathlib import Path

from aggregator.core.settings import RunSettings, TrainingSettings
from aggregator.enrolment.service import EnrolmentSettings
from aggregator.releases.policy import When
from aggregator.releases.rollouts import RolloutSettings
from aggregator.service.start import check_asking
from aggregator.storage.charter import LATEST
from algorithms.registry import AlgorithmSpec
from wire.bundle import Bundle
from wire.links.mqtt import BrokerAddress
from wire.pieces import MOST_BYTES


class CampaignSettings(TrainingSettings[AlgorithmSpec], frozen=True, kw_only=True):
    """What a campaign is started with."""

    run: str = "run-1"
    """Its name: its place in the store."""
    start_from: str = LATEST
    """As in `Charter`."""
    data: str = ""
    """The data's name, for people; the bundle's when empty."""
    min_devices: int = 2
    """As in `RunSettings`, and the least number of updates of a round."""
    days: float = 0.0
    """As in `RunSettings`."""
    deadline_s: float = 600.0
    """Seconds for which a round is open at most."""
    grace_s: float = 60.0
    """Seconds for which a round waits for a device that was lost."""
    min_group: int = 2
    """As in `RunSettings`."""
    weight_cap: float = 10.0
    """As in `RunSettings`."""
    norm_cap: float = 10.0
    """As in `RunSettings`."""
    max_update_norm: float = 1e6
    """As in `RunSettings`."""
    max_drop: float = 0.3
    """As in `RunSettings`."""
    keep_models: int = 3
    """As in `RunSettings`."""
    where: str = ""
    """As in `RunSettings`."""
    cohort: int = 0
    """As in `RunSettings`."""
    over_select: float = 1.0
    """As in `RunSettings`."""
    buffer: int = 0
    """As in `RunSettings`."""
    concurrency: int = 0
    """As in `RunSettings`."""
    quorum: float = 0.0
    """As in `RunSettings`."""
    pace_s: float = 0.0
    """As in `RunSettings`."""
    hours: str = ""
    """As in `RunSettings`."""


class ServeSettings(CampaignSettings, frozen=True, kw_only=True):
    """What a service is started with, and a campaign of it where there is a bundle."""

    folder: Path
    """Holds the database, the blobs and the campaigns."""
    bundle: Path | None = None
    """A folder that `shoal export` wrote, for the campaign `run`; without one only the campaigns of
    the folder go on."""
    broker: BrokerAddress
    fleet: str = "default"
    take_over: bool = False
    """Whether to begin although another aggregator is at work; that one then ends."""
    standby: bool = False
    """Whether to wait while another aggregator has the lease in the database, and then to take
    over."""
    database: str = ""
    """``sqlite:///PATH`` or ``postgresql://...``; SQLite in the folder when empty."""
    blobs: str = ""
    """``s3://BUCKET/PREFIX``, or a folder; one in `folder` when empty."""
    max_payload: int = MOST_BYTES >> 20
    """MiB of the largest update and model."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    http_proxies: str = ""
    """As `aggregator.http.server.read_proxies` takes them."""
    release: When = "off"
    """Whether the fleet has releases, and what makes them (`aggregator.releases.policy`)."""
    release_every: int = 0
    """After so many rounds of training the models are released too; 0: when the campaign is
    over."""
    rollout: RolloutSettings = RolloutSettings()
    """How releases reach devices."""
    stay: bool = True
    """Whether to go on answering devices and HTTP when every campaign is over."""
    enrolment: EnrolmentSettings = EnrolmentSettings()


def run_settings(settings: CampaignSettings, bundle: Bundle, run_id: str) -> RunSettings:
    """What the round core needs of a campaign's settings, for the run of this identity.

    Raises:
        ConfigError: a rule or hours cannot be read, or a cohort is too small.
    """
    made = RunSettings.for_bundle(
        bundle,
        settings,
        where=settings.where,
        cohort=settings.cohort,
        over_select=settings.over_select,
        buffer=settings.buffer,
        concurrency=settings.concurrency,
        quorum=settings.quorum,
        pace_s=settings.pace_s,
        hours=settings.hours,
        run_id=run_id,
        name=settings.run,
        min_updates=settings.min_devices,
        min_group=settings.min_group,
        weight_cap=settings.weight_cap,
        norm_cap=settings.norm_cap,
        max_update_norm=settings.max_update_norm,
        max_drop=settings.max_drop,
        keep_models=settings.keep_models,
        data=settings.data or bundle.manifest.name,
        days=settings.days,
        min_devices=settings.min_devices,
        deadline_s=settings.deadline_s,
        grace_s=settings.grace_s,
    )
    check_asking(made)
    return made
