"""When the rounds of an NVFlare run began and ended: its server writes that into its log."""

import datetime
import re
from collections.abc import Iterable

STAMP = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+) ")
BOUNDARY = re.compile(r"Round \d+ started|Finished FedAvg")


def moments(lines: Iterable[str]) -> list[float]:
    """When each round began and the last one ended, in seconds, from the lines of the server's log.
    The words stand in a box of lines below the line with the time."""
    found, latest = [], ""
    for line in lines:
        if match := STAMP.match(line):
            latest = match[1].replace(",", ".")
        if BOUNDARY.search(line):
            found.append(datetime.datetime.fromisoformat(latest).timestamp())
    return found
