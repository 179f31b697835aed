"""Faults of what the service keeps: power losses, a full disk, damaged blobs and pages."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.deployment import PATIENCE_S, ServiceEnded, kill
from tests.chaos.power import PowerLine
from tests.chaos.trial import Skipped, Trial

DISK_BYTES = 48 * 2**20


def _lose_power(trial: Trial, rng: random.Random | None) -> None:
    deployment = trial.deployment
    deployment.stop()
    line = PowerLine(deployment.served, trial.library("fsynced"))
    deployment.environment = line.environment
    try:
        deployment.start()
        deployment.wait_for_rounds(1, PATIENCE_S)
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
    """Lose power like `lose_power`, but some blocks and unsynchronised names survive."""
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


def fill_disk(trial: Trial) -> None:
    """The file system of the service's folder is full for a while."""
    deployment = trial.deployment
    deployment.stop()
    aside = deployment.served.rename(deployment.folder / "run.disk")
    deployment.served.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(deployment.served)]
    mounted = (
        subprocess.run(mount, capture_output=True, text=True) if shutil.which("mount") else None
    )
    try:
        if mounted is None or mounted.returncode:
            raise Skipped(
                "no file system of a given size: "
                f"{mounted.stderr.strip() if mounted else 'there is no mount here'}"
            )
        shutil.copytree(aside, deployment.served, dirs_exist_ok=True)
        deployment.start()
        deployment.wait_for_rounds(1, PATIENCE_S)
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


def damage_blob(trial: Trial) -> None:
    """One byte of a blob changes while the service is down; what it cannot mend itself, the doctor
    mends or a backup does."""
    deployment = trial.deployment
    trial.at_random()
    kill(deployment.service)
    deployment.settle()
    blobs = sorted(
        path for path in (deployment.served / "blobs" / "run-1").iterdir() if len(path.name) == 64
    )
    path = trial.rng.choice(blobs)
    whole = path.read_bytes()
    at = trial.rng.randrange(len(whole))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    try:
        deployment.start()
        goal = deployment.round() + 1
        deployment.wait(
            lambda: deployment.paused() or deployment.round() >= goal,
            PATIENCE_S,
            "neither a round nor a pause",
        )
    except ServiceEnded:
        path.write_bytes(whole)
        deployment.start()
    path.write_bytes(whole)


def damage_database(trial: Trial) -> None:
    """A page of the database, or of its log, changes while the service is down. The doctor mends,
    or a backup is restored."""
    deployment = trial.deployment
    trial.at_random()
    kill(deployment.service)
    deployment.settle()
    backup = deployment.folder / "backup"
    shutil.rmtree(backup, ignore_errors=True)
    shutil.copytree(deployment.served, backup)
    path = trial.rng.choice(
        [
            path
            for name in ("shoal.db", "shoal.db-wal")
            if (path := deployment.served / name).exists()
        ]
    )
    pages = bytearray(path.read_bytes())
    at = 4096 * trial.rng.randrange(max(1, len(pages) // 4096))
    pages[at : at + 4096] = trial.rng.randbytes(len(pages[at : at + 4096]))
    path.write_bytes(pages)
    doctor = [
        sys.executable,
        "-m",
        "shoal",
        "doctor",
        str(deployment.served),
        "--bundle",
        str(deployment.bundle),
        "--mend",
    ]
    if subprocess.run(doctor, capture_output=True).returncode:
        shutil.rmtree(deployment.served)
        backup.rename(deployment.served)
    deployment.start()
