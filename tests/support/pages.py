"""The pages of the documentation, and the blocks of code on them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"/(build|runs|dist|node_modules|\.[^/]+)/")
"""Folders that hold what was made or installed."""


class Block(NamedTuple):
    """A block of code between fences."""

    page: str
    """Its path in the repository."""
    language: str
    text: str

    @property
    def name(self) -> str:
        """Page, language and first line."""
        return f"{self.page}: {self.language or 'text'}: {self.text.partition(chr(10))[0]}"


def pages() -> list[Path]:
    """Every page of the repository."""
    return sorted(
        path for path in ROOT.rglob("*.md") if not MADE.search(f"/{path.relative_to(ROOT)}")
    )


def blocks(page: str, language: str | None = None) -> list[Block]:
    """The blocks of a page, in their order: those of one language, or all."""
    all_blocks = [Block(page, *match) for match in FENCE.findall((ROOT / page).read_text())]
    return [block for block in all_blocks if language in (None, block.language)]


PAGES = pages()
FENCES = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMANDS = sorted(
    {
        line.split("#")[0].strip()
        for p in PAGES
        for line in re.findall(r"^    (.+)$", FENCES.sub("", p.read_text()), re.MULTILINE)
    }
)
WRITTEN = {"shoal simulate": "summary.json", "shoal compare": "compare.json"}
"""Files that a command of this kind writes into the folder after --out."""
RUNS = [c for c in COMMANDS if c.startswith((*WRITTEN, "shoal algorithms"))]


ADDING = (
    *("add-objective", "add-grouping", "add-mean", "add-optimizer", "add-task", "add-privacy"),
    *("add-personal", "add-command"),
)
"""Pages that show how to add a part, each with a complete program or two."""


def page(name: str) -> str:
    """The text of a page below docs."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def not_named(names: Iterable[str], text: str) -> list[str]:
    """The names that do not stand in the text as code, alone or before their options."""
    return [name for name in names if not re.search(f"`{re.escape(name)}[`:]", text)]


PROGRAMS = re.compile(r"^```python\n(.+?)^```$", re.MULTILINE | re.DOTALL)
