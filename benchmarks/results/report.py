"""The page of results: every benchmark has a section of its own between two marks, and replaces that alone."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parent / "RESULTS.md"


def put(name: str, text: str, page: Path = PAGE) -> None:
    """Put a benchmark's section, Markdown with its heading, in place of its last one; at the end where it has none yet."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    held = page.read_text() if page.exists() else "# Results\n"
    before, _, rest = held.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before.rstrip()}\n\n{begin}\n{text.strip()}\n{end}\n\n{after.lstrip()}".rstrip() + "\n")


def describe_machine() -> str:
    """Processor, cores and versions."""
    entries = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":")[1].strip() for line in entries if line.startswith("model name")), platform.machine())
    versions = f"Python {platform.python_version()}, torch {version('torch')}"
    return f"{processor}, {os.cpu_count()} cores, no GPU used; {versions}"
