"""Faults, each a function that brings one about in a deployment at a random moment, and then does what an operator would do.

`FAULTS` is the table of them.
"""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.chaos.deployment import DEADLINE_S, FLEET, Deployment, ServiceEnded, kill
from tests.chaos.mutation import Mutation
from tests.chaos.power import PowerLine
from tests.chaos.preload import build

HOUR_S = 3600
DISK_BYTES = 48 * 2**20
MUTATIONS = 2000
MORE_BYTES = 64 * 2**20
"""By so much the service's memory may grow while these come."""
REFUSED = 2
"""With this status a service ends that must not work."""


class Skipped(Exception):
    """A fault cannot be brought about on this machine; the text says why."""


@dataclass
class Trial:
    """What a fault works on."""

    deployment: Deployment
    rng: random.Random
    began_s: float = field(default_factory=time.monotonic)
    """When the fault began, or, where one lasts for a while, when it ended."""
    seconds: float = 0.0
    """From then until a round was aggregated."""

    def library(self, name: str) -> Path:
        """A library to preload."""
        try:
            return build(name, self.deployment.folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Skipped(f"no C compiler: {error}") from None

    def at_random(self) -> None:
        """Wait for a random moment of a round; the fault begins then."""
        time.sleep(self.rng.uniform(0.0, 2.0))
        self.began_s = time.monotonic()

    def await_round(self, began_s: float | None = None) -> None:
        """Return when a round was aggregated, which has to be within two deadlines. `began_s`: as the field, if it changes.

        Raises:
            ServiceEnded, TimeoutError: none was.
        """
        self.began_s = began_s or self.began_s
        self.deployment.wait_for_rounds(1, 2 * DEADLINE_S)
        self.seconds = time.monotonic() - self.began_s


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
    """Kill -9 the broker, the service and every device at once, and start them again in random order."""
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


def _lose_power(trial: Trial, rng: random.Random | None) -> None:
    deployment = trial.deployment
    deployment.stop()
    line = PowerLine(deployment.served, trial.library("fsynced"))
    deployment.environment = line.environment
    try:
        deployment.start()
        deployment.wait_for_rounds(1, 2 * DEADLINE_S)
        trial.at_random()
        kill(deployment.service)
        line.lose(rng)
        deployment.start()
    finally:
        deployment.environment = {}
        if deployment.service.poll() is not None:
            line.close()


def lose_power(trial: Trial) -> None:
    """The service's machine loses its power: what was not synchronised is gone."""
    _lose_power(trial, None)


def lose_power_in_part(trial: Trial) -> None:
    """As `lose_power`, but of what was not synchronised each block of a file, and each folder's names, may be there."""
    _lose_power(trial, trial.rng)


def lose_power_at_birth(trial: Trial) -> None:
    """The machine loses its power soon after a new run was begun in a new folder."""
    deployment = trial.deployment
    deployment.stop()
    deployment.settle()
    deployment.witness.forget_run()
    shutil.rmtree(deployment.served)
    deployment.served.mkdir()
    _lose_power(trial, None)


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
    deployment.wait_for_rounds(2, 3 * DEADLINE_S)
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
        raise ServiceEnded(f"the second service ended with {status}, the first with {deployment.service.poll()}")
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


def fill_disk(trial: Trial) -> None:
    """The file system of the service's folder is full for a while."""
    deployment = trial.deployment
    deployment.stop()
    aside = deployment.served.rename(deployment.folder / "run.disk")
    deployment.served.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(deployment.served)]
    mounted = subprocess.run(mount, capture_output=True, text=True) if shutil.which("mount") else None
    try:
        if mounted is None or mounted.returncode:
            raise Skipped(f"no file system of a given size: {mounted.stderr.strip() if mounted else 'there is no mount here'}")
        shutil.copytree(aside, deployment.served, dirs_exist_ok=True)
        deployment.start()
        deployment.wait_for_rounds(1, 2 * DEADLINE_S)
        trial.at_random()
        filler = deployment.served / "filler"
        _fill(filler)
        deployment.wait(deployment.paused, 30, "a full disk did not pause the run")
        time.sleep(trial.rng.uniform(0.0, 3.0))
        filler.unlink()
        trial.await_round(time.monotonic())
    finally:
        deployment.stop()
        if mounted is not None and not mounted.returncode:
            shutil.rmtree(aside)
            shutil.copytree(deployment.served, aside)
            subprocess.run(["umount", str(deployment.served)], check=True)
        deployment.served.rmdir()
        aside.rename(deployment.served)
        deployment.start()


def _fill(path: Path) -> None:
    """Write a file until the file system is full."""
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def shift_clock(trial: Trial) -> None:
    """The service's clock goes an hour back or forth, while it runs and over a restart, and is right again."""
    deployment, offset = trial.deployment, trial.deployment.folder / "clock"
    offset.write_text("0")
    deployment.restart({"LD_PRELOAD": str(trial.library("shifted")), "CLOCK_OFFSET": str(offset)})
    deployment.wait_for_rounds(1, 2 * DEADLINE_S)
    trial.at_random()
    for restarts in (False, True):
        offset.write_text(str(trial.rng.choice((-HOUR_S, HOUR_S))))
        if restarts:
            deployment.restart(deployment.environment)
        trial.await_round(time.monotonic())
    deployment.restart({})


def damage_blob(trial: Trial) -> None:
    """One byte of a blob changes while the service is down; what it cannot mend itself, the doctor mends or a backup does."""
    deployment = trial.deployment
    trial.at_random()
    kill(deployment.service)
    deployment.settle()
    blobs = sorted(path for path in (deployment.served / "blobs" / "run-1").iterdir() if len(path.name) == 64)
    path = trial.rng.choice(blobs)
    whole = path.read_bytes()
    at = trial.rng.randrange(len(whole))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    try:
        deployment.start()
        goal = deployment.round() + 1
        deployment.wait(lambda: deployment.paused() or deployment.round() >= goal, 2 * DEADLINE_S, "neither a round nor a pause")
    except ServiceEnded:
        path.write_bytes(whole)
        deployment.start()
    path.write_bytes(whole)


def damage_database(trial: Trial) -> None:
    """A page of the database, or of its log, changes while the service is down. The doctor mends, or a backup is restored."""
    deployment = trial.deployment
    trial.at_random()
    kill(deployment.service)
    deployment.settle()
    backup = deployment.folder / "backup"
    shutil.rmtree(backup, ignore_errors=True)
    shutil.copytree(deployment.served, backup)
    path = trial.rng.choice([path for name in ("shoal.db", "shoal.db-wal") if (path := deployment.served / name).exists()])
    pages = bytearray(path.read_bytes())
    at = 4096 * trial.rng.randrange(max(1, len(pages) // 4096))
    pages[at : at + 4096] = trial.rng.randbytes(len(pages[at : at + 4096]))
    path.write_bytes(pages)
    doctor = [sys.executable, "-m", "shoal", "doctor", str(deployment.served), "--bundle", str(deployment.bundle), "--mend"]
    if subprocess.run(doctor, capture_output=True).returncode:
        shutil.rmtree(deployment.served)
        backup.rename(deployment.served)
    deployment.start()


def lose_wills(trial: Trial) -> None:
    """The broker and one device are killed together: nobody says that the device is gone. It does not come back until a round is over."""
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
    """2,000 messages that are nearly right, in the name of one device of the fleet and of eleven that nobody knows."""
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
    """A row of the table: what people call it, its function, and how much of the time it has, in parts."""

    name: str
    bring_about: Callable[[Trial], None]
    share: float = 1.0
    forgets: bool = False
    """Whether the service may ask again for updates that it acknowledged: where its memory of them is damaged."""
    models: bool = True
    """Whether the models of its rounds can be computed again: not where updates are left out for their norm."""


FAULTS = (
    Fault("aggregator killed (-9)", kill_aggregator, 3),
    Fault("device killed (-9)", kill_device, 2),
    Fault("broker killed (-9), its memory lost", kill_broker, 2),
    Fault("all killed (-9) at once", kill_all, 1),
    Fault("aggregator's power lost", lose_power, 2),
    Fault("aggregator's power lost, some unsynchronised blocks kept", lose_power_in_part, 2),
    Fault("aggregator's power lost in a new run", lose_power_at_birth, 1),
    Fault("aggregator's folder lost", lose_folder, 1),
    Fault("backup two rounds old restored", restore_backup, 1),
    Fault("second aggregator refused", second_aggregator, 1),
    Fault("second aggregator takes over", take_over, 1),
    Fault("disk full and back", fill_disk, 1),
    Fault("clock an hour back or forth", shift_clock, 1),
    Fault("a blob damaged", damage_blob, 1.5, forgets=True),
    Fault("a database page damaged", damage_database, 1, forgets=True),
    Fault("broker and a device killed, the device stays away", lose_wills, 1),
    Fault("2,000 messages nearly right", send_mutations, 1, models=False),
)
