"""The documentation as a site: it is built strictly, every link leads somewhere, nothing is loaded
from elsewhere, and the generated pages have everything that they are about."""

import html
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from shoal.cli import COMMANDS
from tests.support.operator import GUIDES
from tests.support.pages import COMMANDS as DOCUMENTED
from tests.support.pages import FENCES, ROOT, RUNS

pytestmark = pytest.mark.full

IDS = re.compile(r"""<[^>]*?\s(?:id|name)=["']?([^"'\s>]+)""")
LINKS = re.compile(r"""<(\w+)\s(?:[^>]*?\s)?(?:href|src)=(?:"([^"]*)"|([^"'\s>]+))""")
LOADED = ("script", "img", "iframe", "link", "source", "video")
"""Elements for which a browser loads something."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` makes it."""
    pytest.importorskip(
        "mkdocs", reason="mkdocs is not installed: pip install 'shoal[docs]' would run this"
    )
    out = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return out


def links(page: str) -> list[tuple[str, str]]:
    """Every element with an address, and the address."""
    return [(tag, html.unescape(quoted or plain)) for tag, quoted, plain in LINKS.findall(page)]


def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    places = {path: set(IDS.findall(text)) for path, text in pages.items()}
    assert len(pages) > 30
    broken = []
    for path, text in pages.items():
        if path.name == "404.html":  # its addresses begin at the site's root, wherever that is
            continue
        for _, address in links(text):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (
                (path.parent / unquote(parts.path)).resolve()
                if parts.path not in ("", ".")
                else path
            )
            target = target / "index.html" if target.is_dir() else target
            lost = (
                target in places
                and parts.fragment
                and unquote(parts.fragment) not in places[target] | {"__skip", "__comments"}
            )
            if not target.exists() or lost:
                broken.append(f"{path.relative_to(site)}: {address}")
    assert broken == []


def test_a_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    outside = [
        f"{path.name}: <{tag}> {address}"
        for path in site.rglob("*.html")
        for tag, address in links(path.read_text())
        if tag in LOADED and urlsplit(address).netloc and not address.startswith("data:")
    ]
    assert outside == []
    sheets = [
        found
        for path in site.rglob("*.css")
        for found in re.findall(r"(?:@import|url\()[\s\"']*(https?:[^\"')]+)", path.read_text())
    ]
    assert sheets == []


def test_the_generated_pages_are_complete(site: Path) -> None:
    commands, mqtt, api = (
        (site / f"reference-{name}.html").read_text() for name in ("commands", "mqtt", "http")
    )
    from algorithms.composition import listing
    from algorithms.registry import CHOICES
    from algorithms.sums import KINDS

    chosen = html.unescape((site / "reference-choices.html").read_text())
    for row in listing():
        assert f">{row['name']}<a" in chosen or row["name"] == "dbe", row["name"]
        assert row["citation"] in chosen
        assert [key for key in row["options"] if f"<code>{key}</code>" not in chosen] == []
    declared = Counter(each.in_sums for kind in KINDS for each in CHOICES[kind].values())
    assert len(declared) == 3
    for verdict, count in declared.items():
        assert chosen.count(f"Secret mode</a>: {verdict}.") == count
    assert [name for name in COMMANDS if f'id="shoal-{name}"' not in commands] == []
    assert "--min-devices" in commands
    document = json.loads((ROOT / "wire" / "asyncapi.json").read_text())
    assert [
        name for name in document["components"]["messages"] if f'id="{name.lower()}"' not in mqtt
    ] == []
    assert [
        channel["address"]
        for channel in document["channels"].values()
        if channel["address"] not in html.unescape(mqtt)
    ] == []
    assert all(f"GET {path}" in api for path in ("/health", "/metrics", "/devices"))
    import shoal

    python = (site / "reference-python.html").read_text()
    named = (name for name in shoal.__all__ if name != "STOP")
    assert [name for name in named if not re.search(rf'id="[\w.]+\.{name}"', python)] == []


def test_commands_of_the_quick_starts_are_run_by_a_test_as_they_are() -> None:
    """Commands that simulate or compare are run from their page.
    tests/end_to_end/test_from_nothing.py has `benchmarks.quick_starts` type others; the rest stand
    on a page whose tests run them, word for word."""
    tried = [
        ROOT / "README.md",
        *(
            ROOT / "docs" / f"{name}.md"
            for name in (*GUIDES, "device", "predict", "report", "simulate", "python")
        ),
    ]
    known = {
        line.split("#")[0].strip()
        for page in tried
        for line in re.findall(r"^ {4,}(.+)$", page.read_text(), re.MULTILINE)
    }
    typed = re.findall(
        r'\.(?:type|leave)\("([^"]+)"', (ROOT / "benchmarks" / "quick_starts.py").read_text()
    )
    for page in (ROOT / "docs").glob("start-*.md"):
        own = [
            line.split("#")[0].strip()
            for line in re.findall(r"^    (.+)$", FENCES.sub("", page.read_text()), re.MULTILINE)
        ]
        assert len(own) >= 4
        assert set(own) <= set(DOCUMENTED)
        unknown = [
            c
            for c in own
            if c not in known and c not in RUNS and not c.startswith(("pip install", *typed))
        ]
        assert unknown == [], page.name


def test_pictures_are_those_that_the_program_draws() -> None:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        import draw  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    for name, made in (
        ("groups", draw.groups()),
        ("round", draw.one_round()),
        ("release", draw.release()),
    ):
        assert (ROOT / "docs" / "images" / f"concept-{name}.svg").read_text() == made
