"""A service whose fleet is made up, of any size, for looking at its dashboard: records, distances
and releases are of the right shape, and no device has ever been there."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fastapi import FastAPI
from immutables import Map

from aggregator.aggregation.apply import encode_views
from aggregator.core import telemetry as seen
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.steps import Gate, Step
from aggregator.fleet import records as r
from aggregator.http.api import create_api
from aggregator.http.tokens import Access
from aggregator.operator.desk import Desk
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.view.fleet import FleetView
from aggregator.view.round_record import RoundRecord
from algorithms.core.contract import Grouped, GroupingMemory
from algorithms.personalisation.kept import PersonalChoice
from wire import messages as m

ROUNDS = 12
COMPARED = 200
"""Devices whose distances are made up, at most."""
BOARDS = (
    "Raspberry Pi 4 Model B Rev 1.4",
    "Raspberry Pi 5 Model B",
    "NVIDIA Jetson Orin Nano",
    "Pixel 8",
)
KEEPS = ("served", "recalibrated", "knn-per", "personal")


@dataclass
class MadeUpService:
    """The application, and what is behind it."""

    api: FastAPI
    view: FleetView
    """View for readers; another may replace it."""
    store: MemoryStore
    blobs: MemoryBlobs


def made_up_service(
    count: int,
    access: Access | None = None,
    audit: Path | None = None,
    orders: Desk | None = None,
) -> MadeUpService:
    """Return a service of so many devices in four groups, in its 13th round and with a rollout
    under way."""
    now_s, rng, blobs = time.time(), np.random.default_rng(count), MemoryBlobs()
    names = [f"{'watch' if i % 4 == 3 else 'board'}-{i:0{len(str(count))}d}" for i in range(count)]
    group = {name: str(min(3, int(4 * rng.random() ** 1.5))) for name in names}
    cohort = names[: max(4, len(names) // 2)]
    devices = {
        name: _device(i, name, group[name], name in cohort, now_s, rng)
        for i, name in enumerate(names)
    }
    records = _records(names, group, now_s, rng, blobs)
    at_work = [name for name in cohort if devices[name].assignment is not None]
    received = {name: _received(group[name]) for name in cohort if name not in at_work}
    received = {d: u for d, u in received.items() if not devices[d].failures}
    campaign = _campaign(group, received, records, len(cohort), now_s)
    releases, rollouts = _releases(names, now_s)
    fleet = r.Fleet(
        at_s=now_s,
        devices=Map(devices),
        campaigns={"autumn": campaign},
        releases=releases,
        rollouts=rollouts,
        counts=Map({"train/autumn": len(at_work), f"train/autumn/{ROUNDS + 1}": len(at_work)}),
    )
    telemetry = {
        name: _telemetry(i, group[name], devices[name], now_s, rng) for i, name in enumerate(names)
    }
    counted = ServiceCounters(
        bytes={"up": 3 * 10**6 * count, "down": 5 * 10**6 * count}, stragglers=count // 20
    )
    refused, declined = {"malformed": 3, "too-many": 41, "stale-round": 12}, {"battery": 17}
    conditions = Conditions(refused, True, "", "", counted, declined)
    store, view = MemoryStore(), FleetView(fleet, telemetry, {}, now_s)
    store.commit(r.Fleet(), fleet, set(), (), [("autumn", record) for record in records])
    service = MadeUpService(FastAPI(), view, store, blobs)
    service.api = create_api(
        lambda: service.view,
        store,
        lambda _name: blobs,
        lambda: conditions,
        lambda: 86_400.0,
        access,
        orders,
        audit=audit,
    )
    return service


def _device(
    i: int, name: str, group: str, in_cohort: bool, now_s: float, rng: np.random.Generator
) -> r.Device:
    kind, asked_s = i % 50, now_s - 90
    facts = m.CheckIn(
        name,
        int(rng.integers(80, 900)),
        int(rng.integers(20, 200)),
        client="shoal 0.1.0",
        runtime="executorch" if i % 4 == 3 else "onnxruntime",
        battery_percent=float(rng.integers(2, 18)) if kind == 4 else float(rng.integers(25, 101)),
        charging=kind != 4 and bool(rng.random() < 0.5),
        unmetered=True,
        hardware=BOARDS[i % 4],
        free_bytes=int(rng.integers(10**8, 10**10)),
        temperature_c=float(rng.integers(20, 70)),
    )
    is_away = kind in (10, 11, 12)
    online = not is_away and kind != 30
    failures = 3 if kind == 2 else 1 if kind == 3 else 0
    has_update = bool(i % 3) and online
    work = None
    if in_cohort and kind != 30 and (failures or not has_update):
        work = r.Assignment(
            serial=i + 1,
            kind="train",
            campaign="autumn",
            round=ROUNDS + 1,
            start=group,
            model="1" * 64,
            verbs=(),
            deadline_s=now_s + 510,
            lapsed=failures > 0,
        )
    is_reached = i % 20 == 1 or i % 10 == 0
    release = int(group) + (5 if is_reached else 1)
    problem = "it answers with what is not finite" if kind == 5 and i % 4 == 0 else ""
    in_use = m.InUse(
        name,
        release,
        release,
        problem,
        evaluated=m.Metrics(100, 30.0, 81),
        before=m.Metrics(100, 33.0, 79),
    )
    return r.Device(
        facts=facts,
        first_seen_s=now_s - 40 * 86_400,
        seen_s=now_s - float(rng.integers(600, 400_000) if is_away else rng.integers(1, 50)),
        online=online,
        tags=("canary", "lab") if i % 20 == 1 else ("lab",) if i % 3 == 0 else (),
        ban=r.Ban(now_s - 86_400, "stolen") if kind == 30 else None,
        holds=("1" * 64,),
        assignment=work,
        campaign="autumn",
        asked_s=asked_s,
        updates=ROUNDS,
        declines=int(kind == 3),
        train_s=float(rng.integers(4, 40)),
        failures=failures,
        failing_s=now_s - 4000 if failures else 0.0,
        rests_until_s=now_s + 200 if failures else 0.0,
        in_use=in_use if i % 30 else None,
        last_offer=r.LastOffer(release, release, now_s - 500),
        settled=r.LastOffer(1, int(group) + 1, now_s - 90_000),
    )


def _telemetry(
    i: int, group: str, device: r.Device, now_s: float, rng: np.random.Generator
) -> seen.DeviceTelemetry:
    kind = i % 50
    moved = (seen.GroupChange(now_s - 9000, "autumn", 2, "1"),)
    text = "battery at 18 %, 30 % are needed"
    decline = seen.LastDecline(device.asked_s + 5, "autumn", ROUNDS + 1, "policy", text)
    return seen.DeviceTelemetry(
        heard_s=device.seen_s,
        training=seen.LastTraining(900, 12.0, float(rng.integers(20, 60)), 61_440, 204_800),
        decline=decline if kind == 3 else None,
        groups=(
            *(moved if kind in (7, 8) and group != "1" else ()),
            seen.GroupChange(now_s - 8000, "autumn", 3, group),
        ),
    )


def _records(
    names: list[str],
    group: Mapping[str, str],
    now_s: float,
    rng: np.random.Generator,
    blobs: MemoryBlobs,
) -> list[RoundRecord]:
    compared = tuple(names[:COMPARED])
    numbers = np.array([int(group[name]) for name in compared])
    places = rng.normal(size=(len(compared), 5)) * 0.35 + np.eye(5)[numbers] * 2
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    noisy = apart + np.abs(rng.normal(size=apart.shape)) * 0.5
    views = {"statistics": apart, "responses": (noisy + noisy.T) / 2 * (1 - np.eye(len(compared)))}
    (digest,) = blobs.put(encode_views(Grouped(GroupingMemory(), views=views, device_ids=compared)))
    skill = {name: float(rng.beta(14, 3)) for name in names}
    records = []
    for number in range(1, ROUNDS + 1):
        share = 1 - 0.75 * np.exp(-number / 3)
        evaluated = {
            name: m.Metrics(100, 40.0, int(100 * skill[name] * share))
            for name in names
            if rng.random() < 0.97
        }
        held = {
            name: key if number > 2 or rng.random() < 0.8 else "1" for name, key in group.items()
        }
        notes = {"epsilon": 0.9 * number**0.5} | (
            {"left_out": {names[0]: "norm"}} if number == 9 else {}
        )
        began_s = now_s - (ROUNDS + 1 - number) * 900
        size = len(names)
        records.append(
            RoundRecord(
                *(
                    number,
                    "training",
                    began_s,
                    began_s + 840,
                    evaluated,
                    m.Metrics(),
                    held,
                    61_440 * size,
                    204_800 * size,
                    notes,
                ),
                views=digest if number == ROUNDS else "",
                personal_models={
                    name: PersonalChoice(KEEPS[i % 4], 24, 0.31, {"served": 0.42})
                    for i, name in enumerate(names)
                    if number == ROUNDS and i % 9
                },
            )
        )
    return records


def _campaign(
    group: Mapping[str, str],
    received: Mapping[str, r.AdmittedUpdate],
    records: list[RoundRecord],
    width: int,
    now_s: float,
) -> r.Campaign:
    def version(number: int) -> r.Version:
        return r.Version(
            round=number,
            models=dict.fromkeys("0123", "1" * 64),
            memory="",
            programs={"": (), "closing": ()},
            newcomers="0",
            evaluated=records[number].evaluated if number < len(records) else {},
        )

    return r.Campaign(
        settings=_settings(),
        next_settings=_settings(),
        started_s=now_s - 14 * 86_400,
        phase="training",
        phase_s=now_s - 90,
        version=version(ROUNDS),
        history=tuple(map(version, (9, 10, 11))),
        round=ROUNDS + 1,
        trained=ROUNDS,
        width=width,
        opened_s=now_s - 90,
        deadline_s=now_s + 510,
        members=Map({name: r.Member(group=key) for name, key in group.items()}),
        updates=Map(received),
    )


def _received(start: str) -> r.AdmittedUpdate:
    metrics = m.Metrics(100, 40.0, 80)
    return r.AdmittedUpdate(
        evaluated=metrics,
        trained=metrics,
        bytes_up=61_440,
        bytes_down=204_800,
        blob="1" * 64,
        start=start,
        num_train=200,
        num_steps=7,
        round=ROUNDS + 1,
    )


def _settings() -> RunSettings:
    return RunSettings(
        run_id="made-up",
        name="autumn",
        algorithm="distfl+gaussian",
        data="made up",
        bundle="0" * 64,
        rounds=20,
        min_devices=2,
        deadline_s=600.0,
        grace_s=60.0,
        reported={},
        responses={},
        candidates=KEEPS,
        **ADMIT_ALL,
    )


def _releases(
    names: list[str], now_s: float
) -> tuple[dict[int, r.ModelRelease], tuple[r.Rollout, ...]]:
    def make(first: int, number: int, made_s: float) -> dict[str, r.ModelRelease]:
        metrics = m.Metrics(1000, 300.0, 780 + number)
        return {
            key: r.ModelRelease(
                number=first + int(key),
                group=key,
                bundle="0" * 64,
                model="1" * 64,
                run_id="made-up",
                campaign="autumn",
                round=number,
                algorithm="distfl",
                devices=len(names) // 4,
                metrics=metrics,
                made_s=made_s,
            )
            for key in "0123"
        }

    before, made = make(1, 6, now_s - 90_000), make(5, ROUNDS, now_s - 4000)
    done = r.Rollout(
        campaign="autumn",
        releases={key: release.number for key, release in before.items()},
        steps=(Step(1.0),),
        gate=Gate(),
        phase="done",
        step=1,
        share=1.0,
        began_s=now_s - 90_000,
    )
    going = r.Rollout(
        campaign="autumn",
        releases={key: release.number for key, release in made.items()},
        steps=(Step(0.0, ("canary",)), Step(0.1), Step(1.0)),
        gate=Gate(),
        began_s=now_s - 3600,
        step=1,
        step_s=now_s - 600,
        share=0.1,
        salt="salt",
        reason="4 of 5 devices have confirmed",
    )
    releases = {release.number: release for release in (*before.values(), *made.values())}
    return releases, (done, going)
