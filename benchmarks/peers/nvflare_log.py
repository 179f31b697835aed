"""Times of the rounds of an NVFlare run, from its server's log."""

import datetime
import re
from collections.abc import Iterable

STAMP = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+) ")
BOUNDARY = re.compile(r"Round \d+ started|Finished FedAvg")


def moments(lines: Iterable[str]) -> list[float]:
    """Return the start of each round and the end of the last one, in seconds, from the lines of the
    server's log. The words stand in a box of lines below the line with the time."""
    found, latest = [], ""
    for line in lines:
        if match := STAMP.match(line):
            latest = match[1].replace(",", ".")
        if BOUNDARY.search(line):
            found.append(datetime.datetime.fromisoformat(latest).timestamp())
    return found
