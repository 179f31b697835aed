"""The page of results: every benchmark has a section of its own between two marks, and replaces
that alone."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "RESULTS.md"


def put(name: str, text: str, page: Path = PAGE) -> None:
    """Put a benchmark's section, Markdown with its heading, in place of its last one; at the end
    where it has none yet."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    held = page.read_text() if page.exists() else "# Results\n"
    before, _, rest = held.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(
        f"{before.rstrip()}\n\n{begin}\n{text.strip()}\n{end}\n\n{after.lstrip()}".rstrip() + "\n"
    )


def keep(results: dict[str, Any], out: Path, usual: Path, name: str, text: str) -> None:
    """Write results as JSON, and put their section into the page if that is their usual file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    if out == usual:
        put(name, text)


def describe_machine(card: str = "no GPU used") -> str:
    """Processor, cores, card and versions."""
    entries = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next(
        (line.split(":")[1].strip() for line in entries if line.startswith("model name")),
        platform.machine(),
    )
    versions = f"Python {platform.python_version()}, torch {version('torch')}"
    return f"{processor}, {os.cpu_count()} cores, {card}; {versions}"
