"""The dashboard in a real browser: signing in, a round that is watched, an order, the keyboard, a
phone, dark and light, and axe."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from aggregator.http.server import HttpServer
from benchmarks.made_up_fleet import MadeUpService, made_up_service
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from tests.aggregator.http_service import HttpService, http_service
from tests.support.browser import Watched, chromium, watched

CAMPAIGN = (
    "campaigns/autumn",
    *(f"campaigns/autumn/{part}" for part in ("groups", "accuracy", "privacy")),
)
PAGES = (
    "fleet",
    "device?id=board-05",
    "campaigns",
    *CAMPAIGN,
    "releases",
    "alerts",
    "audit",
    "api",
    "sign-in",
    "nothing",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def service(fleet: FleetData, tmp_path: Path) -> Iterator[tuple[HttpService, str]]:
    service = http_service(fleet, tmp_path)
    with HttpServer("127.0.0.1", port := free_port()) as server, service.running():
        server.serve(service.api)
        yield service, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MadeUpService, str]]:
    made = made_up_service(40, audit=tmp_path_factory.mktemp("folder"))
    with HttpServer("127.0.0.1", port := free_port()) as server:
        server.serve(made.api)
        yield made, f"http://127.0.0.1:{port}"


def sign_in(seen: Watched, address: str, token: str) -> None:
    seen.page.goto(address)
    seen.page.get_by_label("Token").fill(token)
    seen.page.get_by_role("button", name="Sign in").click()


def test_an_operator_signs_in_watches_a_round_end_and_pauses_the_campaign(
    service: tuple[HttpService, str], browser: Browser
) -> None:
    served, address = service
    bench, token = served.bench, served.tokens.new("jane", "operator")
    with watched(browser) as seen:
        page = seen.page
        sign_in(seen, address, token)
        page.get_by_role("link", name="Campaigns").click()
        page.get_by_role("link", name="run-1").click()
        expect(page.get_by_role("heading", name="Round 3")).to_be_visible()
        for number in (4, 5, 6):
            bench.close(a=(1.0, 2), b=(1.0, 3))
            expect(page.get_by_role("heading", name=f"Round {number}")).to_be_visible()
        page.locator("summary", has_text="Pause").click()
        with page.expect_response(lambda answer: answer.request.method == "GET"):
            pass  # a look at the service in the meantime closes nothing
        page.get_by_role("button", name="Pause").click()
        expect(
            page.get_by_role("status").filter(has_text="campaign run-1 is paused")
        ).to_be_visible()
        assert bench.campaign.paused
        expect(page.locator("summary", has_text="Resume")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        # signing in begins with a page that is refused, which the console says
        assert [told for told in seen.complaints if "401" not in told] == []


def test_an_order_whose_meaning_changes_while_it_is_read_is_not_given(
    service: tuple[HttpService, str], browser: Browser
) -> None:
    """Somebody has opened "Promote" on a phone, and the rollout goes to its next step meanwhile:
    the next step's order is not open."""
    served, address = service
    token = served.tokens.new("jane", "operator")
    with watched(browser, phone=True) as seen:
        sign_in(seen, f"{address}/dashboard/releases", token)
        seen.page.locator("summary", has_text="Promote").click()
        expect(seen.page.get_by_text("Take the rollout past step 1")).to_be_visible()
        assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert seen.inaccessible() == []
        promoted = httpx.post(
            f"{address}/rollouts/run-1/promote",
            json={"step": 0},
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        assert promoted.status_code == 200, promoted.text
        expect(seen.page.get_by_text("Take the rollout past step 1")).to_be_hidden()
        expect(seen.page.get_by_role("button", name="Promote")).to_be_hidden()


@pytest.mark.representatives("True-True")
@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, True)])
def test_axe_finds_nothing_in_what_an_operator_may_order(
    service: tuple[HttpService, str], browser: Browser, dark: bool, phone: bool
) -> None:
    served, address = service
    opened = 0
    with watched(browser, dark, phone) as seen:
        sign_in(seen, address, served.tokens.new("jane", "operator"))
        expect(
            seen.page.get_by_role("button", name="Sign out")
            .or_(seen.page.get_by_text("Menu"))
            .first
        ).to_be_attached()
        for path in ("fleet", "device?id=a", "campaigns/run-1", "releases"):
            seen.page.goto(f"{address}/dashboard/{path}")
            opened += seen.page.eval_on_selector_all(
                "main details",
                "all => { for (const one of all) one.open = true; return all.length }",
            )
            assert seen.inaccessible() == [], path
            assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (
                path
            )
    assert opened >= 6, "orders for devices, the campaign and the rollout"


def test_what_somebody_has_opened_to_choose_in_stays_as_it_was_read(
    made: tuple[MadeUpService, str], browser: Browser
) -> None:
    """The page that comes has one more round to roll back to, before the others."""
    with watched(browser) as seen:
        seen.page.goto(f"{made[1]}/dashboard/campaigns/autumn")
        seen.page.wait_for_selector("[data-live]")
        kept = seen.page.evaluate("""() => {
            const [order, form, select] = ["details", "form", "select"].map(
              (name) => document.createElement(name));
            order.id = "order";
            select.append(new Option("11", "11"), new Option("10", "10"));
            form.append(select);
            order.append(form);
            document.querySelector("[data-live]").prepend(order);
            const told = [false, true].map((open) => {
                order.open = open;
                select.value = "10";
                const later = document.documentElement.cloneNode(true);
                later.querySelector("#order").open = false;
                later.querySelector("#order select").prepend(new Option("12", "12"));
                show(later.outerHTML);
                return [select.value, select.options.length];
            });
            return told;
        }""")
    assert kept[1] == ["10", 3], "the second time it was open"
    assert kept[0][1] == 3, "the first time it was not"


def test_words_and_the_place_of_the_focus_stay_while_the_page_follows_the_fleet(
    service: tuple[HttpService, str], browser: Browser
) -> None:
    served, address = service
    with watched(browser) as seen:
        page = seen.page
        page.goto(address)
        page.get_by_label("Search, or a rule").fill("half a wo")
        page.get_by_role("link", name="b", exact=True).focus()
        served.tag("a", "nights")
        expect(page.locator("#device-a")).to_contain_text("nights")
        assert page.get_by_label("Search, or a rule").input_value() == "half a wo"
        assert page.evaluate("document.activeElement.textContent") == "b"
        page.get_by_label("Search, or a rule").fill("tags has nights")
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert seen.complaints == []


def test_the_keyboard_alone_reaches_the_content_and_opens_a_device(
    made: tuple[MadeUpService, str], browser: Browser
) -> None:
    with watched(browser) as seen:
        seen.page.goto(made[1])
        seen.page.keyboard.press("Tab")
        seen.page.keyboard.press("Enter")
        for _ in range(20):
            seen.page.keyboard.press("Tab")
            if "/device?id=" in str(seen.page.evaluate("document.activeElement.href || ''")):
                break
        seen.page.keyboard.press("Enter")
        expect(seen.page.get_by_role("heading", name="Hardware and client")).to_be_visible()


def test_a_page_says_that_the_service_does_not_answer_and_goes_on_when_it_does(
    made: tuple[MadeUpService, str], browser: Browser
) -> None:
    with watched(browser) as seen:
        seen.page.goto(made[1])
        seen.page.context.set_offline(True)
        expect(seen.page.get_by_text("The service does not answer.")).to_be_visible()
        seen.page.context.set_offline(False)
        expect(seen.page.get_by_text("The service does not answer.")).to_be_hidden()


def test_without_scripts_every_page_is_there(
    made: tuple[MadeUpService, str], browser: Browser
) -> None:
    with watched(browser, script=False) as seen:
        seen.page.goto(made[1])
        seen.page.get_by_role("link", name="Banned").click()
        expect(seen.page.locator("tbody tr")).to_have_count(
            sum(device.ban is not None for device in made[0].view.fleet.devices.values())
        )


@pytest.mark.representatives("True-True")
@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, True)])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    made: tuple[MadeUpService, str], browser: Browser, dark: bool, phone: bool
) -> None:
    with watched(browser, dark, phone) as seen:
        for path in PAGES:
            seen.page.goto(f"{made[1]}/dashboard/{path}")
            assert seen.inaccessible() == [], path
            assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (
                path
            )
        assert [told for told in seen.complaints if "404" not in told] == []
