"""`shoal campaign set`: other settings for a campaign."""

from pathlib import Path

from aggregator.http.local import order
from aggregator.storage.charter import check_campaign_name
from shoal.choices import hyper_values, read_encoding, schedule_of
from shoal.handlers.campaign_settings import hours_of, with_asking
from wire.errors import ConfigError


def change(
    folder: Path,
    name: str,
    rounds: int | None,
    days: float | None,
    patience: int | None,
    min_delta: float | None,
    deadline: float | None,
    grace: float | None,
    min_devices: int | None,
    local_epochs: int | None,
    lr: float | None,
    lr_schedule: str,
    update_encoding: str,
    algorithm: str,
    where: str | None,
    cohort: int | None,
    over_select: float | None,
    policy: str,
    quorum: float | None,
    pace: float | None,
    window: str | None,
    time_zone: str,
) -> None:
    """Carry out `shoal campaign set`."""
    hyper_values(lr, {})
    asking = (
        with_asking(policy, cohort, over_select)
        if policy
        else {"cohort": cohort, "over_select": over_select}
    )
    settings = dict(
        rounds=rounds,
        days=days,
        patience=patience,
        min_delta=min_delta,
        grace_s=grace,
        min_devices=min_devices,
        local_epochs=local_epochs,
        lr=lr,
        lr_schedule=schedule_of(lr_schedule) or None,
        update_encoding=read_encoding(update_encoding) if update_encoding else None,
        algorithm=algorithm or None,
        where=where,
        quorum=quorum,
        pace_s=pace,
        hours=hours_of(window, time_zone) if window is not None else None,
        **{"deadline_s": deadline, **asking},
    )
    changes = {field: value for field, value in settings.items() if value is not None}
    if not changes:
        raise ConfigError("shoal campaign set: expected at least one setting, such as --rounds")
    print(order(folder, "campaigns", check_campaign_name(name), "settings", **changes))
