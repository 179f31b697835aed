"""Settings with which a service and its campaigns are started (`host.settings`)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from aggregator.core.steps import Gate, Step
from aggregator.core.training import AdmissionSettings
from host.settings import LARGEST, about
from wire.pieces import MOST_BYTES

if TYPE_CHECKING:
    from wire.links.mqtt import BrokerAddress

A = TypeVar("A")


class CampaignSettings(AdmissionSettings[Any], frozen=True, kw_only=True):
    """Settings of a new campaign; its algorithm is an `AlgorithmSpec`."""

    run: str = "run-1"
    """Name of the campaign, also in the store."""
    start_from: Annotated[
        str,
        about(
            "Models that a new campaign starts from: latest, initial (the bundle's own weights), "
            "or a campaign's name."
        ),
    ] = "latest"
    data: str = ""
    """Name of the data, for people; empty: the bundle's."""
    helpers: Annotated[
        Path | None,
        about("Keys of the helpers of secret mode (helper.pub of each, in one file)."),
    ] = None


class EnrolmentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the enrolment of devices."""

    host: Annotated[str, about("Address at which devices are enrolled over HTTPS.")] = "0.0.0.0"
    port: Annotated[
        int,
        about(
            "Port of the enrolment, if the folder has an authority (`shoal init --tls`); 0: no "
            "enrolment, and no bans at the broker.",
            ge=0,
            le=65_535,
        ),
    ] = 8443
    broker: Annotated[
        str, about("Address of the broker for enrolled devices; that of --broker when empty.")
    ] = ""
    policy: Annotated[
        Path | None, about("Policy that is suggested to enrolled devices (TOML).")
    ] = None
    days: Annotated[
        float, about("Days for which a device's certificate is valid.", gt=0, le=3_650)
    ] = 90.0
    attestation: Annotated[
        Path | None,
        about(
            "Attestation that an app and its phone need for their enrolment (TOML); without it, "
            "none."
        ),
    ] = None


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the rollout of releases."""

    steps: tuple[Step, ...] = (Step(0.1), Step(0.5), Step(1.0))
    gate: Gate = Gate()


class ServeSettings(CampaignSettings, frozen=True, kw_only=True):
    """Settings of a service, and of a campaign if there is a bundle."""

    folder: Path
    """Path of the folder with the database, the blobs and the campaigns."""
    bundle: Path | None = None
    """Path of the folder that `shoal export` wrote, for the campaign `run`.

    If None, only the campaigns of the folder go on.
    """
    broker: "BrokerAddress"
    fleet: str = "default"
    release: Annotated[
        Literal["off", "manual", "auto"],
        about("When releases are made: off, manual (by order), auto (when a campaign finishes)."),
    ] = "off"
    release_every: Annotated[
        int,
        about("Rounds after which auto makes a release too; 0: none.", ge=0, le=LARGEST),
    ] = 0
    rollout: RolloutSettings = RolloutSettings()
    take_over: Annotated[
        bool, about("Start although another aggregator is running, which then stops.")
    ] = False
    standby: Annotated[
        bool,
        about(
            "Wait while another aggregator has the lease in the PostgreSQL database, then take "
            "over."
        ),
    ] = False
    database: Annotated[
        str,
        about("sqlite:///PATH or postgresql://USER@HOST/NAME; SQLite in the folder when empty."),
    ] = ""
    blobs: Annotated[str, about("s3://BUCKET/PREFIX, or a folder; one in --folder when empty.")] = (
        ""
    )
    max_payload: Annotated[
        int,
        about(
            "Size of the largest update in MiB; shoal-edge has the same option, for models too.",
            ge=1,
            le=1024,
        ),
    ] = MOST_BYTES >> 20
    accelerator: Annotated[
        str,
        about(
            "Where a group's models are combined: cpu, cuda, cuda:1, or auto (a GPU that torch "
            "finds, if the mean compares models)."
        ),
    ] = "auto"
    http_host: Annotated[
        str,
        about("Address of the HTTP API; one for other machines needs tokens.", option="host"),
    ] = "127.0.0.1"
    http_port: Annotated[
        int, about("Port of the HTTP API; 0: any free one.", option="port", ge=0, le=65_535)
    ] = 8080
    http_proxies: Annotated[
        str,
        about(
            "Addresses or networks of trusted reverse proxies, which set X-Forwarded-For and "
            "-Proto; separated by commas.",
            option="proxy",
        ),
    ] = ""
    alert_webhook: Annotated[
        str,
        about(
            "URL that gets a message when an alert begins and when it ends (docs/alerts.md); none "
            "when empty. Set SHOAL_SERVE_ALERT_WEBHOOK if the URL is a secret."
        ),
    ] = ""
    stay: Annotated[bool, about("Keep running when all campaigns have finished.")] = True
    enrolment: EnrolmentSettings = EnrolmentSettings()
