"""Reports and the pages of `shoal ui` in a real browser: dark and light, a phone's screen, the
keyboard, no scripts, and axe."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from aggregator.http.server import HttpServer
from algorithms.composition import read_algorithm
from shoal.reports.files import write_comparison
from shoal.reports.site import Library, Site
from simulation.comparison import runs as compare
from simulation.comparison.table import tabulate
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.shoal.report_cases import write
from tests.support.browser import chromium, watched
from tests.support.fleets import synthetic_fleet


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs and a comparison."""
    root = tmp_path_factory.mktemp("runs")
    for name, algorithm in (("one", "distfl"), ("two", "personal")):
        settings = SimulationSettings(read_algorithm(algorithm), 2, newcomers=1)
        write(
            root / name,
            simulate(synthetic_fleet(6), settings),
            f"shoal simulate --algorithm {algorithm} --rounds 2 --newcomers 1",
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "fleet_of", lambda *_: synthetic_fleet(4))
        jobs = [
            compare.Job("synthetic", SimulationSettings(read_algorithm(a), 2))
            for a in ("fedavg", "local")
        ]
        results = [compare.run_job(job) for job in jobs]
    (root / "compared").mkdir()
    write_comparison(root / "compared", results, tabulate(results))
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with HttpServer("127.0.0.1", 0) as server:
        server.serve(Site(Library(root)))
        yield f"http://127.0.0.1:{server.address[1]}"


PAGES = (
    "",
    "report/one",
    "report/two",
    "report/compared",
    "compare?run=one&run=two",
    "report/nothing",
)


@pytest.mark.representatives("True-True")
@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, True)])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    address: str, browser: Browser, dark: bool, phone: bool
) -> None:
    with watched(browser, dark, phone) as seen:
        for path in PAGES:
            seen.page.goto(f"{address}/{path}")
            assert seen.inaccessible() == [], path
            assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (
                path
            )
        assert [told for told in seen.complaints if "404" not in told] == []


def test_a_report_is_whole_as_a_file_alone(root: Path, browser: Browser, tmp_path: Path) -> None:
    """Copied to another folder, without a network, and without scripts."""
    (tmp_path / "sent.html").write_bytes((root / "one" / "report.html").read_bytes())
    with watched(browser, script=False) as seen:
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(request.url))
        seen.page.goto(f"file://{tmp_path}/sent.html")
        expect(seen.page.get_by_role("heading", name="Devices, worst first")).to_be_visible()
        expect(seen.page.get_by_role("img", name="Accuracy over bytes")).to_be_visible()
        assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
        assert seen.complaints == []


def test_the_keyboard_alone_chooses_two_runs_and_compares_them(
    address: str, browser: Browser
) -> None:
    with watched(browser, script=False) as seen:
        seen.page.goto(address)
        seen.page.get_by_label("Choose one").focus()
        seen.page.keyboard.press("Space")
        seen.page.get_by_label("Choose two").focus()
        seen.page.keyboard.press("Space")
        seen.page.keyboard.press("Enter")
        expect(seen.page.get_by_role("heading", name="2 runs side by side")).to_be_visible()
        seen.page.keyboard.press("Tab")
        expect(seen.page.get_by_role("link", name="Skip to the content")).to_be_focused()
        seen.page.keyboard.press("Enter")
        expect(seen.page.locator("main")).to_be_focused()


def test_the_parts_of_a_page_are_links_to_what_is_on_it(address: str, browser: Browser) -> None:
    with watched(browser, script=False) as seen:
        for path in ("report/one", "report/compared", "compare?run=one&run=two"):
            seen.page.goto(f"{address}/{path}")
            links = [
                link.get_attribute("href") or "" for link in seen.page.locator(".side a").all()
            ]
            inner = [link for link in links if link.startswith("#")]
            assert len(inner) >= 3, path
            assert [link for link in inner if seen.page.locator(link).count() != 1] == [], path
