"""Faults, each a function that brings one about in a deployment at a random moment, and then does
what an operator would do.

`FAULTS` is the table of them.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.chaos.deployment import FLEET, PATIENCE_S, ServiceEnded, kill
from tests.chaos.mutation import Mutation
from tests.chaos.storage_faults import (
    damage_blob,
    damage_database,
    fill_disk,
    lose_power,
    lose_power_at_birth,
    lose_power_in_part,
)
from tests.chaos.trial import Skipped, Trial
from wire.errors import OtherAggregator

HOUR_S = 3600
MUTATIONS = 2000
MORE_BYTES = 64 * 2**20
"""Maximum growth of the service's memory while these come."""
REFUSED = OtherAggregator.exit_status
"""With this status a service ends that must not work."""


def kill_aggregator(trial: Trial) -> None:
    """Kill -9 the service, and start it again."""
    trial.at_random()
    kill(trial.deployment.service)
    trial.deployment.start()


def kill_device(trial: Trial) -> None:
    """Kill -9 one device, and start it again."""
    trial.at_random()
    device_id = trial.rng.choice(sorted(trial.deployment.devices.processes))
    kill(trial.deployment.devices.processes[device_id])
    time.sleep(trial.rng.uniform(0.0, 1.0))
    trial.deployment.devices.start(device_id)


def kill_broker(trial: Trial) -> None:
    """Kill -9 the broker, which forgets everything, and start it again."""
    trial.at_random()
    trial.deployment.broker.kill()
    time.sleep(trial.rng.uniform(0.0, 1.0))
    trial.deployment.broker.start()


def kill_all(trial: Trial) -> None:
    """Kill -9 the broker, the service and every device at once, and start them again in random
    order."""
    trial.at_random()
    deployment = trial.deployment
    deployment.broker.kill()
    kill(deployment.service)
    for process in deployment.devices.processes.values():
        kill(process)
    deployment.broker.start()
    devices = sorted(deployment.devices.processes)
    trial.rng.shuffle(devices)
    for device_id in devices:
        deployment.devices.start(device_id)
    deployment.start()


def kill_database(trial: Trial) -> None:
    """Kill -9 PostgreSQL, and start it again."""
    postgres = trial.deployment.postgres
    if postgres is None:
        raise Skipped("the database is a file")
    trial.at_random()
    postgres.kill()
    time.sleep(trial.rng.uniform(0.5, 3.0))
    postgres.start()


def lose_folder(trial: Trial) -> None:
    """Kill the service, delete its folder, and start it: another run begins."""
    trial.at_random()
    deployment = trial.deployment
    kill(deployment.service)
    deployment.settle()
    deployment.witness.forget_run()
    shutil.rmtree(deployment.served)
    deployment.start()


def restore_backup(trial: Trial) -> None:
    """Kill the service, put a backup that is two rounds old in its folder's place, and start it."""
    deployment = trial.deployment
    backup = deployment.folder / "backup"
    place, mark = deployment.place(), deployment.snapshot(backup)
    deployment.wait_for_rounds(2, PATIENCE_S)
    trial.at_random()
    kill(deployment.service)
    deployment.settle()
    shutil.rmtree(deployment.served)
    backup.rename(deployment.served)
    deployment.witness.forget_since(mark, place)
    deployment.start()


def second_aggregator(trial: Trial) -> None:
    """Start a second service: it sees that the first is alive, and ends."""
    trial.at_random()
    deployment = trial.deployment
    second = deployment.launch(folder=deployment.folder / "second", port=free_port())
    try:
        status = second.wait(60)
    finally:
        stop_processes([second])
    if status != REFUSED or deployment.service.poll() is not None:
        raise ServiceEnded(
            f"the second service ended with {status}, the first with {deployment.service.poll()}"
        )
    trial.await_round(time.monotonic())


def take_over(trial: Trial) -> None:
    """Start a second service on a copy of the folder, with --take-over: the first ends."""
    trial.at_random()
    deployment = trial.deployment
    first, standby = deployment.service, deployment.folder / "standby"
    place, mark = deployment.place(), deployment.snapshot(standby)
    port = free_port()
    second = deployment.launch("--take-over", folder=standby, port=port)
    deployment.services.append(second)
    try:
        status = first.wait(60)
    except subprocess.TimeoutExpired:
        raise TimeoutError("the first service did not end") from None
    if status != REFUSED:
        raise ServiceEnded(f"the first service ended with {status}")
    deployment.witness.forget_since(mark, place)
    deployment.port = port
    trial.await_round()
    deployment.stop()
    shutil.rmtree(deployment.served)
    standby.rename(deployment.served)
    deployment.start()


def shift_clock(trial: Trial) -> None:
    """The service's clock goes an hour back or forth, while it runs and over a restart, and is
    right again."""
    deployment, offset = trial.deployment, trial.deployment.folder / "clock"
    offset.write_text("0")
    deployment.restart({"LD_PRELOAD": str(trial.library("shifted")), "CLOCK_OFFSET": str(offset)})
    deployment.wait_for_rounds(1, PATIENCE_S)
    trial.at_random()
    for restarts in (False, True):
        offset.write_text(str(trial.rng.choice((-HOUR_S, HOUR_S))))
        if restarts:
            deployment.restart(deployment.environment)
        trial.await_round(time.monotonic())
    deployment.restart({})


def lose_wills(trial: Trial) -> None:
    """The broker and one device are killed together: nobody says that the device is gone. It does
    not come back until a round is over."""
    trial.at_random()
    deployment = trial.deployment
    device_id = trial.rng.choice(sorted(deployment.devices.processes))
    deployment.broker.kill()
    kill(deployment.devices.processes[device_id])
    deployment.broker.start()
    try:
        trial.await_round()
    finally:
        deployment.devices.start(device_id)


def send_mutations(trial: Trial) -> None:
    """2,000 messages that are nearly right, in the name of one device of the fleet and of eleven
    that nobody knows."""
    deployment, rng = trial.deployment, trial.rng
    *others, last = sorted(deployment.devices.processes)
    ids = (*(last,) * 11, *(f"stranger-{i}" for i in range(11)))
    mutation = Mutation(lambda: deployment.witness.seeds(others), FLEET, ids, rng)
    before_bytes = deployment.resident_bytes()
    trial.at_random()
    for _ in range(MUTATIONS):
        deployment.witness.link.publish(*mutation.message())
        time.sleep(0.002)
    trial.await_round(time.monotonic())
    grown_bytes = deployment.resident_bytes() - before_bytes
    if grown_bytes > MORE_BYTES:
        raise ServiceEnded(f"the service's memory grew by {grown_bytes:,} bytes")


@dataclass(frozen=True)
class Fault:
    """A row of the table: what people call it, its function, and how much of the time it has, in
    parts."""

    name: str
    bring_about: Callable[[Trial], None]
    share: float = 1.0
    forgets: bool = False
    """True if the service may ask again for updates that it acknowledged: if its memory of them is
    damaged."""
    models: bool = True
    """True if the models of its rounds can be computed again: not if updates are left out for their
    norm."""
    in_folder: bool = False
    """True if it needs a database in the service's folder."""


FAULTS = (
    Fault("aggregator killed (-9)", kill_aggregator, 3),
    Fault("device killed (-9)", kill_device, 2),
    Fault("broker killed (-9), its memory lost", kill_broker, 2),
    Fault("all killed (-9) at once", kill_all, 1),
    Fault("database killed (-9)", kill_database, 2),
    Fault("aggregator's power lost", lose_power, 2),
    Fault("aggregator's power lost, some unsynchronised blocks kept", lose_power_in_part, 2),
    Fault("aggregator's power lost in a new run", lose_power_at_birth, 1, in_folder=True),
    Fault("aggregator's folder lost", lose_folder, 1, in_folder=True),
    Fault("backup two rounds old restored", restore_backup, 1, in_folder=True),
    Fault("second aggregator refused", second_aggregator, 1),
    Fault("second aggregator takes over", take_over, 1, in_folder=True),
    Fault("disk full and back", fill_disk, 1),
    Fault("clock an hour back or forth", shift_clock, 1),
    Fault("a blob damaged", damage_blob, 1.5, forgets=True),
    Fault("a database page damaged", damage_database, 1, forgets=True, in_folder=True),
    Fault("broker and a device killed, the device stays away", lose_wills, 1),
    Fault("2,000 messages nearly right", send_mutations, 1, models=False),
)
