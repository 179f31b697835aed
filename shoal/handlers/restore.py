"""`shoal restore`: a copy in the place of a service's folder."""

from pathlib import Path

from aggregator.doctor.backup import restore as put_back


def restore(copy: Path, folder: Path) -> None:
    """Carry out `shoal restore`."""
    aside, told = put_back(copy, folder)
    kept = f"; what was there is in {aside}" if aside else ""
    print(
        f"{folder} is as it was copied{kept}. `shoal serve` goes on from there: rounds since then are done again, and nothing counts twice"
    )
    for line in told:
        print(line)
