"""A service whose fleet is made up, of any size, for looking at its dashboard: states, records,
distances and releases are of the right shape, and no device has ever been there."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fastapi import FastAPI
from immutables import Map

from aggregator.aggregation.apply import encode_views
from aggregator.core import registry as known
from aggregator.core.ports import Blobs, Store
from aggregator.core.record import RoundRecord
from aggregator.core.release.releases import Draft, add, put
from aggregator.core.release.state import FleetState, Gate, Holder, Rollout, RolloutStep
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.state import Device, ModelVersion, Received, RunState
from aggregator.http.api import create_api
from aggregator.http.tokens import Access
from aggregator.operator.desk import Desk
from aggregator.service.conditions import Conditions, Counted
from aggregator.service.devices import Devices
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from algorithms.core.contract import Grouped, GroupingMemory
from algorithms.personalisation.kept import Kept
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
class MadeUp:
    """A campaign as `aggregator.http.views.Shown` has it, whose state can be changed."""

    state: RunState
    store: Store
    blobs: Blobs
    paused: str = ""


@dataclass
class MadeUpService:
    """The application, and what is behind it."""

    api: FastAPI
    campaign: MadeUp
    devices: Devices
    releases: FleetState


def made_up_service(
    count: int,
    access: Access | None = None,
    audit: Path | None = None,
    orders: Desk | None = None,
) -> MadeUpService:
    """A service of so many devices in four groups, in its 13th round and with a rollout under
    way."""
    now_s, rng = time.time(), np.random.default_rng(count)
    names = [f"{'watch' if i % 4 == 3 else 'board'}-{i:0{len(str(count))}d}" for i in range(count)]
    group = {name: str(min(3, int(4 * rng.random() ** 1.5))) for name in names}
    devices = Devices(None, time.time)
    devices.entries = Map(
        {name: _entry(i, name, group[name], now_s, rng) for i, name in enumerate(names)}
    )
    campaign = _campaign(names, group, now_s, rng)
    releases = _releases(names, group, devices.entries, now_s)
    counted = Counted(
        bytes={"up": 3 * 10**6 * count, "down": 5 * 10**6 * count}, stragglers=count // 20
    )
    conditions = Conditions(
        {"malformed": 3, "too-many": 41, "stale-round": 12},
        True,
        "",
        "",
        counted,
        {"battery": 17, "metered": 4},
    )
    api = create_api(
        lambda: {"autumn": campaign},
        lambda: conditions,
        lambda: 86_400.0,
        devices,
        lambda: releases,
        access,
        orders,
        audit=audit,
    )
    return MadeUpService(api, campaign, devices, releases)


def _entry(i: int, name: str, group: str, now_s: float, rng: np.random.Generator) -> known.Entry:
    kind, asked_s = i % 50, now_s - 90
    said = m.CheckIn(
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
    moved = (
        (known.GroupChange(now_s - 9000, "autumn", 2, "1"),)
        if kind in (7, 8) and group != "1"
        else ()
    )
    is_away = kind in (10, 11, 12)
    decline = (
        known.Decline(asked_s + 5, "autumn", 13, "policy", "battery at 18 %, 30 % are needed")
        if kind == 3
        else None
    )
    return known.Entry(
        tags=("canary", "lab") if i % 20 == 1 else ("lab",) if i % 3 == 0 else (),
        ban=known.Ban(now_s - 86_400, "stolen") if kind == 30 else None,
        said=said,
        first_seen_s=now_s - 40 * 86_400,
        last_seen_s=now_s - float(rng.integers(600, 400_000) if is_away else rng.integers(1, 50)),
        online=not is_away and kind != 30,
        campaign="autumn",
        asked_s=asked_s,
        decline=decline,
        declines=int(decline is not None),
        updates=ROUNDS,
        train_s=float(rng.integers(4, 40)),
        training=known.Training(900, 12.0, float(rng.integers(20, 60)), 61_440, 204_800),
        kept=known.KeptModel(
            now_s - 40_000, "summer", 20, Kept(KEEPS[i % 4], 24, 0.31, {"served": 0.42})
        ),
        group=group,
        groups=(*moved, known.GroupChange(now_s - 8000, "autumn", 3, group)),
        release=2,
        release_problem="it answers with what is not finite" if kind == 5 and i % 4 == 0 else "",
    )


def _campaign(
    names: list[str], group: Mapping[str, str], now_s: float, rng: np.random.Generator
) -> MadeUp:
    blobs, store = MemoryBlobs(), MemoryStore()
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
                kept={
                    name: Kept(KEEPS[i % 4], 24, 0.31, {"served": 0.42})
                    for i, name in enumerate(names)
                    if number == ROUNDS and i % 9
                },
            )
        )
    store.commit([], records)
    cohort = names[: max(4, len(names) // 2)]
    there = {
        name: Device(
            num_train=200,
            num_test=80,
            online=i % 50 not in (10, 11, 12, 30),
            last_seen_s=now_s,
            failures=3 * (i % 50 == 2),
        )
        for i, name in enumerate(names)
    }
    received = {
        name: _received(group[name])
        for i, name in enumerate(cohort)
        if i % 3 and there[name].online
    }
    state = RunState(
        settings=_settings(),
        started_at_s=now_s - 14 * 86_400,
        phase="training",
        round=ROUNDS + 1,
        devices=Map(there),
        num_online=sum(device.online for device in there.values()),
        models=dict.fromkeys("0123", digest),
        starts=dict(group),
        trained=ROUNDS,
        cohort={name: group[name] for name in cohort},
        received=received,
        declined=tuple(name for i, name in enumerate(cohort) if i % 50 == 3),
        opened_at_s=now_s - 90,
        deadline_at_s=now_s + 510,
        history=tuple(
            ModelVersion(
                round=n,
                models={},
                memory="",
                starts={},
                programs={},
                evaluated=records[n].evaluated,
            )
            for n in (9, 10, 11)
        ),
    )
    return MadeUp(state, store, blobs)


def _received(start: str) -> Received:
    told = m.Metrics(100, 40.0, 80)
    return Received(
        evaluated=told,
        trained=told,
        bytes_up=61_440,
        bytes_down=204_800,
        blob="1" * 64,
        start=start,
        num_train=200,
        num_steps=7,
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
    names: list[str], group: Mapping[str, str], entries: Mapping[str, known.Entry], now_s: float
) -> FleetState:
    def drafts(number: int) -> list[Draft]:
        common = {
            "bundle": "0" * 64,
            "model": "1" * 64,
            "run_id": "made-up",
            "campaign": "autumn",
            "algorithm": "distfl",
        }
        metrics, share = m.Metrics(1000, 300.0, 780 + number), len(names) // 4
        return [
            Draft(group=f"autumn/{key}", round=number, devices=share, metrics=metrics, **common)
            for key in "0123"
        ]

    catalogue, before = add(FleetState().catalogue, drafts(6), now_s - 90_000)
    catalogue = put(catalogue, [release.number for release in before], "released")
    catalogue, made = add(catalogue, drafts(ROUNDS), now_s - 4000)
    catalogue = put(catalogue, [release.number for release in made], "canary")
    steps = (RolloutStep(0.0, ("canary",)), RolloutStep(0.1), RolloutStep(1.0))
    numbers = {release.group: release.number for release in made}
    rollout = Rollout(
        releases=numbers,
        steps=steps,
        gate=Gate(),
        began_at_s=now_s - 3600,
        step=1,
        step_at_s=now_s - 600,
        salt="salt",
        reason="4 of 5 confirmed",
    )
    holders = {}
    for i, name in enumerate(names):
        own, online = f"autumn/{group[name]}", entries[name].online
        is_reached = i % 20 == 1 or i % 10 == 0
        number = numbers[own] if is_reached else int(group[name]) + 1
        said = (
            m.InUse(
                name,
                number,
                number,
                evaluated=m.Metrics(100, 30.0, 81),
                before=m.Metrics(100, 33.0, 79),
            )
            if i % 30
            else None
        )
        holders[name] = Holder(own, entries[name].tags, online, number, now_s - 500, 1, said)
    return FleetState(
        at_s=now_s, catalogue=catalogue, devices=Map(holders), rollouts={"autumn": rollout}
    )
