"""Costs of the dashboard with 10,000 devices: the time until a browser has painted a page, the time
until an event is on it, and the time that the service spends on a look.

Run as ``python -m benchmarks.dashboard``; writes ``benchmarks/results/dashboard.json``. The fleet
is synthetic (`benchmarks.made_up_fleet`). The server, the pages and the browser, Debian's Chromium,
are real and share this machine. It takes two minutes.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import Page, expect

from aggregator.http.server import HttpServer
from aggregator.view.fleet import FleetView
from benchmarks.made_up_fleet import MadeUpService, made_up_service
from benchmarks.results.report import describe_machine, keep
from simulation.local.broker import free_port
from tests.support.browser import chromium, watched

OUT = Path(__file__).parent / "results" / "dashboard.json"
CAMPAIGN = "campaigns/autumn"
PAGES = (
    "fleet",
    "fleet?q=battery+%3C+30",
    CAMPAIGN,
    f"{CAMPAIGN}/groups",
    f"{CAMPAIGN}/accuracy",
    "releases",
    "alerts",
)
TIMES = 5
PAINTED = """new Promise(done => new PerformanceObserver(list => {
  for (const paint of list.getEntriesByName("first-contentful-paint")) done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
ANSWERED = (
    "performance.getEntriesByType('navigation')[0].responseEnd - "
    "performance.getEntriesByType('navigation')[0].requestStart"
)


def measure(count: int, folder: Path) -> dict[str, Any]:
    """Milliseconds by page, and from an event to the page."""
    made = made_up_service(count, audit=folder)
    with HttpServer("127.0.0.1", port := free_port()) as server, chromium() as browser:
        server.serve(made.api)
        pages = {}
        for path in PAGES:
            painted, answered = [], []
            for _ in range(TIMES + 1):
                with watched(browser) as seen:
                    seen.page.goto(f"http://127.0.0.1:{port}/dashboard/{path}")
                    painted.append(float(seen.page.evaluate(PAINTED)))
                    answered.append(float(seen.page.evaluate(ANSWERED)))
            pages[path] = {
                "first_ms": round(painted[0]),
                "painted_ms": round(statistics.median(painted[1:])),
                "slowest_ms": round(max(painted[1:])),
                "answered_ms": round(statistics.median(answered[1:])),
            }
        with watched(browser) as seen:
            seen.page.goto(f"http://127.0.0.1:{port}")
            events = [event_ms(made, seen.page, number) for number in range(10)]
    return {
        "pages": pages,
        "event_ms": {"median": round(statistics.median(events)), "slowest": round(max(events))},
    }


def event_ms(made: MadeUpService, page: Page, number: int) -> float:
    """Return the milliseconds from a tag, which a device of the page is given, until it is seen
    there; all other devices send messages meanwhile."""
    device_id = str(page.locator("tbody tr").nth(number).get_attribute("id")).removeprefix(
        "device-"
    )
    time.sleep(0.37 * number % 1)  # somewhere between two looks
    view, now_s = made.view, time.time()
    heard = {
        d: replace(each, heard_s=now_s) if view.fleet.devices[d].online else each
        for d, each in view.telemetry.items()
    }
    began_s = time.perf_counter()
    tagged = replace(view.fleet.devices[device_id], tags=(f"tag-{number}",))
    fleet = replace(view.fleet, devices=view.fleet.devices.set(device_id, tagged))
    made.view = FleetView(fleet, heard, {}, now_s)
    expect(page.locator(f"#device-{device_id}")).to_contain_text(f"tag-{number}", timeout=20_000)
    return 1e3 * (time.perf_counter() - began_s)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--devices", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.devices, Path(folder))
    results = {"machine": describe_machine(), "devices": arguments.devices, **found}
    text = table_of(results)
    print(text)
    keep(results, arguments.out, OUT, "dashboard", text)


def table_of(results: dict[str, Any]) -> str:
    """The section of the page of results."""
    rows = [
        (
            f"| {path} | {ms['answered_ms']} ms | {ms['painted_ms']} ms | {ms['slowest_ms']} ms | "
            f"{ms['first_ms']} ms |"
        )
        for path, ms in results["pages"].items()
    ]
    event = results["event_ms"]
    head = (
        f"`python -m benchmarks.dashboard`. {results['machine']}. {results['devices']:,} devices "
        "that are made up; server and Chromium "
        "share the machine. When the answer was there, and first contentful paint: the median of "
        f"{TIMES} with an empty cache, the slowest of them, and the first after the start of the "
        "service. An event is on an open page of "
        f"the fleet after {event['median']} ms (median of 10) and {event['slowest']} ms at most; "
        "every device is heard at that moment."
    )
    columns = "| page | answered | painted | slowest | first |"
    return "\n".join(
        ["## What the dashboard costs", "", head, "", columns, "|---|---|---|---|---|", *rows]
    )


if __name__ == "__main__":
    main()
