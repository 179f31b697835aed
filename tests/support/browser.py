"""A real browser for tests: Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright


@dataclass
class Watched:
    """A page, and everything that its console has complained of."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def note(self, message: ConsoleMessage) -> None:
        """Take in a line of the console."""
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def inaccessible(self) -> list[str]:
        """Return axe's findings on the current page."""
        violations = Axe().run(self.page).response["violations"]
        return [
            f"{rule['id']}: {node['html'][:200]}" for rule in violations for node in rule["nodes"]
        ]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; the test is skipped where Debian's package is not installed."""
    binary = shutil.which("chromium")
    if binary is None:
        pytest.skip("Chromium is not installed: apt-get install chromium would run this")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=sandbox)
        yield browser
        browser.close()


@contextmanager
def watched(
    browser: Browser, dark: bool = False, phone: bool = False, script: bool = True
) -> Iterator[Watched]:
    """A page of a browser that knows nothing yet."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844} if phone else {"width": 1280, "height": 800},
        color_scheme="dark" if dark else "light",
        java_script_enabled=script,
    )
    context.set_default_timeout(20_000)
    seen = Watched(context.new_page())
    seen.page.on("console", seen.note)
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    yield seen
    context.close()
