"""Answers of the HTTP API about a service and its campaigns. Times are Unix seconds."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from aggregator.fleet.records import Phase
from aggregator.ports import Blobs
from aggregator.view.fleet import CampaignView, CampaignWait
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import count_groups, spread_of
from wire.messages import Encoding

BlobsOf = Callable[[str], Blobs | None]
"""Returns the blobs of a campaign, by its name; None if they cannot be opened."""


class HealthView(BaseModel):
    """Life sign of the process, with the progress of its latest campaign."""

    status: Literal["ok", "starting"]
    run: str = Field(description="Empty: there is no campaign yet, or the service is starting.")
    phase: Phase | Literal[""]
    round: int
    doing: str = Field(default="", description="What it is doing, while it is starting.")


class ReadyView(BaseModel):
    """Readiness for updates; each check is `ok`, or a text with the fault."""

    ready: bool
    broker: str
    database: str
    disk: str
    run: str
    voucher: str
    phase: Phase | Literal[""] = Field(description="Of the latest campaign.")


class ServerLine(BaseModel):
    """A device that could serve a campaign."""

    id: str
    why: str = Field(description="Why it does not serve now; `free`: it waits for others.")
    at_s: float = Field(description="When it can; 0: nobody knows.")


class WaitingView(BaseModel):
    """Wait of a campaign, and the devices that could end it."""

    lacks: str
    since_s: float
    could_serve: dict[str, int] = Field(
        description="Devices that could serve, by the reason why they do not now."
    )
    cannot_serve: dict[str, int] = Field(
        description="Devices that cannot serve, by what they lack."
    )
    reasons: str = Field(description="Both, with times, in words.")
    devices: list[ServerLine] = Field(
        description="The first of those that could serve, soonest first."
    )


class CampaignLine(BaseModel):
    """A campaign in a list."""

    name: str
    algorithm: str
    phase: Phase
    round: int
    trained: int = Field(description="Rounds of training that are over.")
    rounds: int = Field(description="Rounds of training that it is to have.")
    devices: int
    online: int
    groups: int
    paused: str = Field(description="Why it does not go on; empty while it does.")
    ended: str = Field(description="Why it trains no further; empty while it does.")
    waiting: WaitingView | None = Field(description="Null: it waits for nothing.")


class HelperView(BaseModel):
    """Helper of secret mode: its name at the broker, and its key (DER, base64)."""

    model_config = ConfigDict(extra="forbid")
    name: str
    der: str


class SettingsView(BaseModel):
    """Settings of a campaign; `aggregator/core/settings.py` describes each."""

    model_config = ConfigDict(extra="forbid")
    run_id: str
    name: str
    algorithm: str
    data: str
    bundle: str
    rounds: int
    local_epochs: int
    seed: int
    batch_size: int
    hyper: dict[str, float]
    lr_schedule: str
    patience: int
    min_delta: float
    days: float
    min_batch: int
    needs_labels: bool
    min_devices: int
    deadline_s: float
    grace_s: float
    max_update_norm: float
    min_updates: int
    min_group: int
    weight_cap: float
    norm_cap: float
    max_drop: float
    keep_models: int
    where: str
    cohort: int
    over_select: float
    buffer: int
    concurrency: int
    quorum: float
    pace_s: float
    hours: str
    when: str
    candidates: list[str]
    update_encoding: Encoding
    secret: bool
    min_sum: int
    helpers: list[HelperView]


class RunView(BaseModel):
    """A campaign with its settings."""

    settings: SettingsView
    phase: Phase
    round: int
    online: int
    cohort: int
    received: int
    groups: int
    deadline_s: float
    bytes_up: int
    bytes_down: int
    refused: dict[str, int] = Field(
        description="How often something that arrived at the service was refused, by reason."
    )
    paused: str
    ended: str
    waiting: WaitingView | None
    epoch: int
    attempt: int


class SpreadView(BaseModel):
    """Accuracies over devices, as fractions; null if no device has one."""

    mean: float | None
    std: float | None
    worst: float | None


class RoundView(BaseModel):
    """A closed round."""

    round: int
    phase: Phase
    opened_at_s: float
    closed_at_s: float
    devices: int
    groups: int
    accuracy: SpreadView = Field(description="Of the models that devices received in the round.")
    personal_models: dict[str, int] = Field(
        description="After the last round: how many devices keep what, of those that tell."
    )
    placed: dict[str, str] = Field(
        description="By device that has too few labels to train: how sure its group is."
    )
    bytes_up: int
    bytes_down: int
    notes: dict[str, Any] = Field(
        description="What the algorithm says of the round; docs/bounds.md names what matters."
    )


def campaign_line(name: str, view: CampaignView) -> CampaignLine:
    """Return a campaign's line."""
    campaign = view.record
    return CampaignLine(
        name=name,
        algorithm=campaign.settings.algorithm,
        phase=campaign.phase,
        round=campaign.round,
        trained=campaign.trained,
        rounds=campaign.next_settings.rounds,
        devices=view.devices,
        online=view.online,
        groups=view.groups,
        paused=view.paused,
        ended=view.ended,
        waiting=waiting_view(view.waiting),
    )


def waiting_view(waiting: CampaignWait | None) -> WaitingView | None:
    """Return the wait of a campaign; None if it waits for nothing."""
    if waiting is None:
        return None
    return WaitingView(
        lacks=waiting.lacks,
        since_s=waiting.since_s,
        could_serve=dict(waiting.could),
        cannot_serve=dict(waiting.cannot),
        reasons=waiting.reasons,
        devices=[ServerLine(id=d, why=why, at_s=at_s) for d, why, at_s in waiting.servers],
    )


def round_view(record: RoundRecord) -> RoundView:
    """Return the line of a closed round."""
    return RoundView(
        round=record.round,
        phase=record.phase,
        opened_at_s=record.opened_at_s,
        closed_at_s=record.closed_at_s,
        devices=len(record.evaluated),
        groups=count_groups(record.groups),
        accuracy=SpreadView.model_validate(msgspec.to_builtins(spread_of(record))),
        personal_models=dict(
            sorted(Counter(model.candidate for model in record.personal_models.values()).items())
        ),
        placed={device_id: str(placed) for device_id, placed in record.placed.items()},
        bytes_up=record.bytes_up,
        bytes_down=record.bytes_down,
        notes=msgspec.json.decode(
            msgspec.json.encode(record.notes)
        ),  # values that are not finite become null
    )
