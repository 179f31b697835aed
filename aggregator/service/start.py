"""Checks before a service touches its database or the broker.

A start that must fail changes nothing and disturbs no other service.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aggregator.aggregation.orders import start_campaign
from aggregator.aggregation.probe_file import load_probe
from aggregator.aggregation.stored import work_of
from aggregator.core.hours import read_hours
from aggregator.core.settings import RunSettings
from aggregator.core.training import SAME_DEVICES, RoundSettings, check_fixed
from aggregator.fleet.eligibility import read_rule
from aggregator.fleet.rounds import drift_share
from aggregator.leadership.identity import own_secret
from aggregator.service_settings import CampaignSettings
from aggregator.storage.blob_bucket import blob_digests, blobs_name
from aggregator.storage.engine import database_name
from aggregator.storage.memory import MemoryBlobs
from algorithms.algorithm import Algorithm
from algorithms.composition import AlgorithmSpec, read_algorithm
from algorithms.core.contract import Probe
from algorithms.privacy.base import counts_from
from algorithms.schedules import check_schedule
from algorithms.sums import check_cells, check_in_clear, check_in_sums, num_inputs
from host.helpers import load_helpers
from host.settings import check, marked
from wire.bundle import Bundle, unpack
from wire.errors import BundleError, ConfigError
from wire.identity.keys import PrivateKey, PublicKey, read_private, read_public
from wire.secret.named_keys import NamedKey
from wire.secret.survey import SURVEY_MOST

T = TypeVar("T")
MOST_CHANNELS = 1400
"""Maximum number of BatchNorm channels of a model with groups in secret mode.

A plan has at most 48 KiB (SPEC.md, 'Signatures'). Each channel takes up to 25 bytes of it, and axes
and splits take up to 12 KiB.
"""

log = logging.getLogger("shoal.aggregator")


@dataclass(frozen=True)
class Trust:
    """Keys by which devices verify signatures."""

    keys: tuple[PublicKey, ...]
    root: PrivateKey | None
    """Root key; None if it is not in the folder."""


@dataclass(frozen=True)
class Exported:
    """Bundle and probe of a campaign, written by `shoal export`."""

    bundle: Bundle
    probe: Probe


def read_trust(folder: Path) -> Trust:
    """Return the keys in ``trust.pem`` of a folder, and the one in ``signing.key`` if it is there.

    Raises:
        ConfigError: a file cannot be read, or does not have the expected content.
    """
    keys, key_file = _read(folder / "trust.pem", read_public), folder / "signing.key"
    return Trust(keys, _read(key_file, read_private) if key_file.exists() else None)


def read_exported(folder: Path, trust: Trust) -> Exported:
    """Return the bundle in ``device.shoal`` and the probe in ``server.pt2`` of a folder.

    Raises:
        ConfigError: a file cannot be read, does not have the expected content, or has a
            signature that devices would reject.
    """
    bundle = _read(folder / "device.shoal", lambda payload: unpack(payload, trust.keys))
    return Exported(
        bundle, _read(folder / "server.pt2", lambda payload: load_probe(payload, bundle.digest))
    )


def refuse_lost_run(
    database: str,
    run: RunSettings,
    algorithm: Algorithm,
    exported: Exported,
    folder: Path,
    blobs: str,
) -> None:
    """Raise ConfigError if a campaign is new to the database but has blobs.

    In this case its database is lost, or another one was named. A new campaign would delete the
    blobs that it does not need. A start that was killed before it was stored leaves only the bundle
    and the first models: the campaign starts with them again. `folder`, `blobs`: as for
    `aggregator.storage.blob_bucket.open_blobs`; no folder is created.

    Raises:
        ConfigError: the campaign has other blobs.
        StorageFailed: the blobs cannot be listed.
    """
    digests = blob_digests(blobs, folder, run.name)
    if not digests:
        return
    first = start_campaign(
        run, algorithm, exported.probe, exported.bundle.initial, MemoryBlobs(), 0.0
    ).record.version
    if digests - {run.bundle, first.memory, *first.models.values()}:
        raise ConfigError(
            f"campaign {run.name!r}: missing in database {database_name(database)}, but "
            f"{blobs_name(blobs, folder, run.name)} has its blobs; restore the database, name the "
            "right one with --database, or choose another --run"
        )


def check_asking(settings: RunSettings) -> None:
    """Raise ConfigError if the rules of a run's cohorts, times or budgets are invalid.

    Raises:
        ConfigError: a rule or hours cannot be read, a number is out of range, or a cohort is too
            small.
    """
    numbers = ("days", "patience", "min_delta", "over_select", "quorum", "pace_s")
    sizes = ("cohort", "buffer", "concurrency")
    check(RunSettings, {name: getattr(settings, name) for name in (*numbers, *sizes)})
    check_schedule(settings.lr_schedule, settings.rounds)
    read_rule(settings.where)
    read_hours(settings.hours)
    drift_share(settings.when)
    if settings.concurrency and not settings.buffer:
        raise ConfigError(f"concurrency must be 0 without a buffer, got {settings.concurrency}")
    if settings.buffer and settings.cohort:
        raise ConfigError(f"cohort must be 0 with a buffer, got {settings.cohort}")
    if settings.buffer and settings.over_select != 1:
        raise ConfigError(f"over_select must be 1 with a buffer, got {settings.over_select:g}")
    for name in ("buffer", "cohort"):
        if 0 < (value := getattr(settings, name)) < settings.min_updates:
            raise ConfigError(
                f"{name} must be 0 or at least min_devices ({settings.min_updates}), got {value}"
            )


def run_settings(settings: CampaignSettings, bundle: Bundle, run_id: str) -> RunSettings:
    """Return the settings of a run, from those of a campaign and its bundle.

    Raises:
        ConfigError: a rule or hours cannot be read, or a cohort is too small.
    """
    helpers: tuple[NamedKey, ...] = ()
    if settings.secret:
        check_secret(settings, settings.algorithm)
        helpers = _helpers(settings.helpers)
    else:
        if settings.helpers is not None:
            raise ConfigError(
                f"--helpers needs --secret, got --helpers {settings.helpers} alone: without secret "
                "mode the service reads every update; add --secret, or leave out --helpers"
            )
        check_in_clear(settings.algorithm)
    run = RunSettings.for_bundle(
        bundle,
        settings,
        run_id=run_id,
        helpers=helpers,
        name=settings.run,
        data=settings.data or bundle.manifest.name,
        min_updates=settings.min_devices,
    )
    check_asking(run)
    if run.secret:
        check_surveyed(run, settings.algorithm)
    return run


def check_secret(settings: RoundSettings[Any], algorithm: AlgorithmSpec) -> None:
    """Raise ConfigError if secret mode cannot run an algorithm, or settings of a campaign."""
    check_in_sums(algorithm)
    check_cells(algorithm.parts.mean, settings.min_devices, settings.min_sum)
    check_fixed(
        settings,
        {
            "over_select": (1.0, SAME_DEVICES),
            "buffer": (0, SAME_DEVICES),
            "where": ("", SAME_DEVICES),
            "when": ("", "in secret mode devices report nothing but sums"),
        },
    )
    if algorithm.candidates:
        raise ConfigError(
            f"algorithm {str(algorithm)!r}: devices choose a personal model by what they report, "
            "which secret mode does not have; use an algorithm without one, such as fedavg+uniform"
        )


def check_surveyed(run: RunSettings, algorithm: AlgorithmSpec) -> None:
    """Raise ConfigError if the groups of a run cannot be found from secret sums."""
    if not algorithm.parts.grouping.surveys:
        return
    if run.min_devices > SURVEY_MOST:
        raise ConfigError(
            f"min_devices must be at most {SURVEY_MOST}, the largest number of devices that secret "
            f"mode can group, got {run.min_devices}"
        )
    if (channels := num_inputs(run.responses)) > MOST_CHANNELS:
        raise ConfigError(
            f"bundle {run.bundle[:12]}: its model has {channels} BatchNorm channels, and secret "
            f"mode finds groups for at most {MOST_CHANNELS}; export a smaller "
            "model, or use an algorithm without groups, such as fedavg+uniform"
        )


def _helpers(path: Path | None) -> tuple[NamedKey, ...]:
    """Return the helpers of a file.

    Raises:
        ConfigError: there is no file, or it cannot be used.
    """
    if path is None:
        raise ConfigError(
            "secret mode needs helpers, which open its sums (docs/helper.md); set --helpers to a "
            "file with the helper.pub of each"
        )
    return load_helpers(path, log)


def check_retuned(stored: RunSettings, wanted: RunSettings, folder: Path) -> str:
    """Return the settings that a run changes, for people; empty if there are none.

    A run cannot continue with another bundle or seed, or with another algorithm except for its
    mean. With a privacy mechanism it cannot change the settings on which the epsilon depends, or
    plan more rounds than its privacy budget allows.

    Raises:
        ConfigError: the run cannot continue with these settings. The text names the differences.
    """
    check_asking(wanted)
    if wanted.secret:
        algorithm = read_algorithm(wanted.algorithm)
        check_secret(wanted, algorithm)
        check_surveyed(wanted, algorithm)
    fields = [
        name
        for name in RunSettings.__struct_fields__
        if name not in ("reported", "responses", "run_id", "min_batch")
    ]
    differing = [name for name in fields if getattr(stored, name) != getattr(wanted, name)]
    before, now = read_algorithm(stored.algorithm), read_algorithm(wanted.algorithm)
    same_but_mean = all(
        getattr(before, choice) == getattr(now, choice)
        for choice in ("objective", "grouping", "privacy", "server_optimizer")
    )
    private = now.privacy.name != "no-privacy"
    other_kind = bool(stored.buffer) != bool(wanted.buffer)
    fixed = [
        name
        for name in differing
        if (private and name in marked(RunSettings, "epsilon"))
        or (name not in marked(RunSettings, "live") and not (name == "algorithm" and same_but_mean))
        or (name == "buffer" and other_kind)
    ]
    if fixed:
        pairs = ", ".join(f"{n} {getattr(stored, n)!r}, not {getattr(wanted, n)!r}" for n in fixed)
        raise ConfigError(
            f"run {stored.name!r} in {folder} was started with other settings ({pairs}); give it "
            "another --run"
        )
    counts = counts_from(wanted.min_batch, wanted.batch_size)
    now.with_noise(wanted.rounds, counts, work_of(wanted))
    return ", ".join(f"{n} {getattr(wanted, n)!r}, not {getattr(stored, n)!r}" for n in differing)


def run_secret(folder: Path, run: str, has_begun: bool, algorithm: Algorithm) -> bytes:
    """Return the bytes from which the noise of a run is drawn: folder's secret and run's name.

    `has_begun`: True if the run has begun, so that the secret should exist.

    Raises:
        ConfigError: the secret is lost, and the run has drawn noise from it; or it cannot be read
            or written.
    """
    path = folder / "secret.key"
    if has_begun and not path.exists():
        if algorithm.privacy.server_noise:
            cause = f"missing, but run {run!r} draws its noise from it"
            raise ConfigError(
                f"secret {path}: {cause}; restore it from a backup, or begin another run (--run)"
            )
        log.warning(
            "Secret was missing, another is made; the run draws no noise: run=%s secret=%s",
            run,
            path,
        )
    return own_secret(path) + run.encode()


def _read(path: Path, parse: Callable[[bytes], T]) -> T:
    """Return the parsed content of a file in the bundle's folder.

    Raises:
        ConfigError: the file cannot be read or has another content. The text names the file.
    """
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"bundle file {path}: {error.strerror}; `shoal export` writes it"
        ) from None
    except BundleError as error:
        raise ConfigError(f"bundle file {path}: {error}") from None
