"""The page of results: every benchmark has a section of its own between two marks, and replaces that alone."""

from pathlib import Path

PAGE = Path(__file__).parent / "RESULTS.md"


def put(name: str, text: str, page: Path = PAGE) -> None:
    """Put a benchmark's section, Markdown with its heading, in place of its last one; at the end where it has none yet."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    held = page.read_text() if page.exists() else "# Results\n"
    before, _, rest = held.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before.rstrip()}\n\n{begin}\n{text.strip()}\n{end}\n{after}".rstrip() + "\n")
