"""Reports of a small run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from algorithms.composition import read_algorithm
from shoal.api.run import extras_of
from shoal.asked import NOW, Asked
from shoal.reports.files import write_report
from simulation.simulate import SimulationResult


@contextmanager
def asked(command: str) -> Iterator[None]:
    """Let code run as if it were this command."""
    token = NOW.set(Asked(command))
    try:
        yield
    finally:
        NOW.reset(token)


def write(folder: Path, outcome: SimulationResult, command: str = "shoal simulate") -> Path:
    """A report as the command leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    with asked(command):
        summary = msgspec.structs.replace(outcome.summary, command=command)
        extras = extras_of(outcome, read_algorithm("distfl"), outcome.data)
        write_report(folder, summary, outcome.records, outcome.blobs, extras)
    return folder / "report.html"
