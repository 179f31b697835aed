"""The dashboard's pages and orders: what they show, to whom, and that nothing that a device says is
more than text."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from aggregator.fleet import events as e
from aggregator.fleet.records import Ban
from aggregator.http.api import create_starting_api
from aggregator.http.dashboard.orders import read_form, read_order
from aggregator.http.server import HttpServer
from aggregator.operator.audit import AUDIT, note, read_back
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from tests.aggregator.http_service import HttpService, http_service
from wire import messages as m
from wire.codec import encode
from wire.errors import ConfigError

PAGES = (
    "fleet",
    "device?id=a",
    "campaigns",
    *(f"campaigns/run-1{part}" for part in ("", "/groups", "/accuracy", "/privacy")),
)
PAGES = (*PAGES, "releases", "alerts", "audit", "api")
OWN = {"Sec-Fetch-Site": "same-origin"}
PAUSE = {"type": "campaign-pause", "name": "run-1", "back": "/dashboard/campaigns/run-1"}


@pytest.fixture
def service(fleet: FleetData, tmp_path: Path) -> HttpService:
    return http_service(fleet, tmp_path, burst=1000)


@pytest.fixture
def browser(service: HttpService) -> Callable[..., TestClient]:
    def open_browser(role: Any = None, name: str = "jane") -> TestClient:
        client = TestClient(service.api, "http://127.0.0.1", follow_redirects=False, headers=OWN)
        if role is not None:
            client.post("/dashboard/sign-in", data={"token": service.tokens.new(name, role)})
        return client

    return open_browser


def give(service: HttpService, client: TestClient, fields: dict[str, str], **headers: str) -> Any:
    """Send a form as a browser does, and follow it to the page that says what became of it."""
    with service.running():
        given = client.post("/dashboard/orders", data=fields, headers=headers)
    return client.get(given.headers["location"]) if given.status_code == 303 else given


class TestPages:
    def test_each_loads_nothing_from_elsewhere_and_has_no_script_or_style_of_its_own(
        self, browser: Callable[..., TestClient]
    ) -> None:
        client = browser("operator")
        for path in PAGES:
            shown = client.get(f"/dashboard/{path}")
            assert shown.status_code == 200, path
            assert (
                "default-src 'none'; script-src 'self'; style-src 'self'"
                in shown.headers["Content-Security-Policy"]
            )
            assert all(
                address.startswith("/dashboard/")
                for address in re.findall(r'(?:src|href|action)="([^"#][^"]*)"', shown.text)
            ), path
            assert not re.search(r"<style|<script(?! src=)|\sstyle=|\son\w+=", shown.text), path

    def test_the_address_of_the_service_leads_to_the_fleet_and_docs_to_the_reference(
        self, browser: Callable[..., TestClient]
    ) -> None:
        client = browser()
        leads = {
            path: client.get(path).headers["location"]
            for path in ("/", "/dashboard", "/dashboard/", "/docs")
        }
        assert leads.pop("/docs") == "/dashboard/api"
        assert set(leads.values()) == {"/dashboard/fleet"}

    def test_the_reference_has_every_path_of_the_api(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        shown = browser().get("/dashboard/api").text
        assert [
            path for path in service.api.openapi()["paths"] if f"<code>{path}</code>" not in shown
        ] == []
        assert "<code>summary.json</code>" in shown
        assert "`" not in shown

    def test_a_page_that_has_not_changed_is_not_sent_again(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        client = browser()
        tag = client.get("/dashboard/fleet").headers["ETag"]
        assert client.get("/dashboard/fleet", headers={"If-None-Match": tag}).status_code == 304
        service.tag("a", "lab")
        assert client.get("/dashboard/fleet", headers={"If-None-Match": tag}).status_code == 200

    def test_what_is_not_there_is_said_on_a_page(self, browser: Callable[..., TestClient]) -> None:
        client = browser()
        for path in (
            "device?id=nobody",
            "device",
            "campaigns/nothing",
            "campaigns/run-1/similarity/0.png",
            "nothing",
        ):
            shown = client.get(f"/dashboard/{path}")
            assert (shown.status_code, '<p class="told bad"' in shown.text) == (404, True), path
            assert "Not found</h1>" in shown.text
        assert client.get("/dashboard/static/..%2Fapp.py").status_code == 404

    def test_parameters_that_make_no_sense_are_those_of_the_first_page(
        self, browser: Callable[..., TestClient]
    ) -> None:
        first = browser().get("/dashboard/fleet").text
        odd = browser().get("/dashboard/fleet?page=99999999999&sort=x&show=y").text
        assert re.findall(r'id="device-\w+"', odd) == re.findall(r'id="device-\w+"', first) != []
        for path in (
            "fleet?page=-1",
            "audit?before=x",
            "audit?before=99999999",
            "campaigns/run-1?page=7",
            "fleet?q=%00%ff",
        ):
            assert browser().get(f"/dashboard/{path}").status_code == 200, path

    def test_what_devices_say_is_text(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        """A board, a decline and a ban whose words are HTML."""
        hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
        bench = service.bench
        bench.send(
            "a",
            "check-in",
            encode(m.CheckIn("a", 10, 4, client=hostile, hardware=hostile, runtime=hostile)),
        )
        bench.runner.order(
            e.Banned(at_s=bench.clock(), device_id="b", ban=Ban(bench.clock(), hostile))
        )
        note(service.folder, hostile, hostile, hostile, text=hostile)
        for path in (
            "fleet",
            "device?id=a",
            "device?id=b",
            "audit",
            f"fleet?q={hostile}",
            "audit?q=%3Cscript%3E",
        ):
            shown = browser().get(f"/dashboard/{path}").text
            assert "&lt;script&gt;" in shown
            assert not re.search(r"<script(?! src=\"/dashboard/)|<img src=x", shown), path

    @pytest.mark.parametrize("device_id", [".", "..", "a.b-c_D"])
    def test_every_device_has_a_page_that_its_link_leads_to(
        self, service: HttpService, browser: Callable[..., TestClient], device_id: str
    ) -> None:
        """A browser takes ``..`` out of a path before it asks."""
        service.bench.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))
        client = browser()
        (link,) = re.findall(
            rf'href="([^"]+)">{re.escape(device_id)}</a>', client.get("/dashboard/fleet").text
        )
        shown = client.get(link)
        assert (shown.status_code, f"<h1>{device_id}</h1>" in shown.text) == (200, True)

    def test_while_the_service_starts_a_page_says_so_and_asks_again(self) -> None:
        client = TestClient(create_starting_api(lambda: "reads <folder>"), "http://127.0.0.1")
        for path in ("/", "/dashboard/fleet"):
            shown = client.get(path)
            assert (shown.status_code, shown.headers["Refresh"]) == (503, "2")
            assert "The service is starting: reads &lt;folder&gt;." in shown.text
        styles = re.findall(r'href="(/dashboard/static/[^"]+)"', shown.text)
        assert [client.get(address).status_code for address in styles] == [200] * len(styles) != []


class TestSigningIn:
    def test_from_the_first_token_on_a_page_asks_for_one_and_goes_on_where_somebody_was(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        token, client = service.tokens.new("jane", "viewer"), browser()
        asked = client.get("/dashboard/campaigns/run-1")
        assert (
            asked.status_code,
            'name="next" value="/dashboard/campaigns/run-1"' in asked.text,
        ) == (401, True)
        entered = client.post(
            "/dashboard/sign-in", data={"token": token, "next": "/dashboard/campaigns/run-1"}
        )
        cookie = entered.headers["set-cookie"]
        assert all(
            word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/dashboard/")
        ), cookie
        assert client.get(entered.headers["location"]).status_code == 200
        assert "<strong>jane</strong>" in client.get("/dashboard/fleet").text
        client.post("/dashboard/sign-out")
        assert client.get("/dashboard/fleet").status_code == 401
        assert not (service.folder / AUDIT).exists(), "to be asked for a token is no failed attempt"

    def test_the_cookie_opens_pages_and_not_the_api(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        browser("operator")
        token = service.tokens.new("x", "operator")
        client = TestClient(
            service.api, "http://127.0.0.1", headers={"Cookie": f"shoal-token={token}"} | OWN
        )
        assert client.get("/dashboard/fleet").status_code == 200
        assert (
            client.get("/run").status_code,
            client.post("/campaigns/run-1/pause").status_code,
        ) == (401, 401)

    def test_over_tls_another_port_without_tls_cannot_put_a_cookie_in_its_place(
        self, service: HttpService
    ) -> None:
        """A browser takes a cookie whose name begins so from nobody else, and the name without it
        means nothing over TLS."""
        token = service.tokens.new("jane", "viewer")
        client = TestClient(
            service.api, "https://fleet.example", follow_redirects=False, headers=OWN
        )
        cookie = client.post("/dashboard/sign-in", data={"token": token}).headers["set-cookie"]
        assert cookie.startswith("__Host-shoal-token=")
        assert all(
            word in cookie for word in ("Secure", "HttpOnly", "Path=/;", "SameSite=strict")
        ), cookie
        assert "Domain" not in cookie
        assert client.get("/dashboard/fleet").status_code == 200
        gone = client.post("/dashboard/sign-out").headers["set-cookie"]
        assert ('__Host-shoal-token=""' in gone, "Secure" in gone) == (True, True), (
            "or a browser would not take it"
        )
        assert client.get("/dashboard/fleet").status_code == 401
        planted = TestClient(
            service.api, "https://fleet.example", headers=OWN | {"Cookie": f"shoal-token={token}"}
        )
        assert planted.get("/dashboard/fleet").status_code == 401

    @pytest.mark.parametrize(
        ("proxies", "believed"),
        [("", False), ("10.0.0.0/8", False), ("127.0.0.1", True), ("10.0.0.1, 127.0.0.0/8", True)],
    )
    def test_what_a_proxy_says_is_believed_of_one_that_was_named(
        self, service: HttpService, proxies: str, believed: bool
    ) -> None:
        service.tokens.new("jane", "viewer")
        said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7"}
        with HttpServer("127.0.0.1", port := free_port(), proxies=proxies) as server:
            server.serve(service.api)
            address = f"http://127.0.0.1:{port}"
            cookie = httpx.post(
                f"{address}/dashboard/sign-in", data={"token": "t"}, headers=OWN | said, timeout=60
            ).headers["set-cookie"]
            wrong = {"Authorization": "Bearer wrong"}
            httpx.get(f"{address}/run", headers=wrong | said, timeout=60)
        assert ("Secure" in cookie) is believed
        (line,) = read_back(service.folder).lines
        assert line.by == ("nobody at 203.0.113.7" if believed else "nobody at 127.0.0.1")

    @pytest.mark.parametrize(
        "proxies", ["proxy.example", "127.0.0.1/33", "127.0.0.1;10.0.0.1", "*"]
    )
    def test_a_proxy_is_named_by_its_address(self, proxies: str) -> None:
        with pytest.raises(
            ConfigError,
            match=r"http_proxies must be addresses or networks, such as 127\.0\.0\.1 or "
            r"10\.0\.0\.0/8, got '",
        ):
            HttpServer("127.0.0.1", 0, proxies=proxies)

    def test_wrong_tokens_are_limited_as_those_of_the_api_are(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        browser("viewer")
        client = TestClient(
            service.api, "http://127.0.0.1", headers={"Cookie": "shoal-token=wrong"}
        )
        answers = [client.get("/dashboard/fleet") for _ in range(12)]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
        assert "The token is unknown, revoked or expired." in answers[0].text
        assert 'shoal-token=""' in answers[0].headers["set-cookie"], "the browser forgets it"

    def test_a_token_that_was_revoked_shows_nothing_any_more(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        client = browser("viewer", "grafana")
        assert client.get("/dashboard/fleet").status_code == 200
        service.tokens.revoke("grafana")
        assert client.get("/dashboard/fleet").status_code == 401

    def test_nobody_is_sent_elsewhere(self, browser: Callable[..., TestClient]) -> None:
        for address in (
            "https://evil.example/",
            "//evil.example/dashboard/",
            "/run",
            "javascript:alert(1)",
            "/dashboard/\\x",
        ):
            entered = browser().post("/dashboard/sign-in", data={"token": "t", "next": address})
            assert entered.headers["location"] == "/dashboard/fleet", address

    def test_what_is_no_address_is_refused_and_ends_nothing(
        self, browser: Callable[..., TestClient]
    ) -> None:
        client = browser("operator")
        for address in ("//[", "/dashboard/" + "x" * 2000):
            assert (
                'name="next" value="/dashboard/fleet"'
                in client.get("/dashboard/sign-in", params={"next": address}).text
            )
        alone = TestClient(client.app, "http://127.0.0.1", follow_redirects=False)
        assert (
            alone.post(
                "/dashboard/sign-in", data={"token": "t"}, headers={"Origin": "http://["}
            ).status_code
            == 403
        )
        assert (
            client.get(f"/dashboard/campaigns/run-1/similarity/{'9' * 5000}.png").status_code == 404
        )

    def test_a_link_of_another_site_signs_nobody_out(
        self, browser: Callable[..., TestClient]
    ) -> None:
        """The browser holds the cookie back: the page asks for a token and leaves the one that is
        kept."""
        client = browser("operator")
        without = TestClient(client.app, "http://127.0.0.1", follow_redirects=False)
        asked = without.get("/dashboard/fleet?q=battery")
        assert (asked.status_code, "set-cookie" in asked.headers) == (401, False)
        assert 'name="next" value="/dashboard/fleet?q=battery"' in asked.text
        wrong = without.get("/dashboard/fleet", headers={"Cookie": "shoal-token=abc"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, True)

    def test_what_is_no_form_with_a_token_is_refused(
        self, browser: Callable[..., TestClient]
    ) -> None:
        for body in (
            b"",
            b"token=",
            b"token=%C3%A4",
            b"x",
            b"token=a&token=b",
            b"token=" + b"a" * 5000,
            b"\xff",
            b"a=" + b"b" * 99_999,
        ):
            assert browser().post("/dashboard/sign-in", content=body).status_code in (413, 422), (
                body[:20]
            )


class TestOrders:
    def test_an_operator_orders_and_the_page_says_what_came_of_it_once(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        client = browser("operator")
        shown = give(service, client, PAUSE)
        assert "campaign run-1 is paused" in shown.text
        assert service.bench.campaign.paused
        assert "campaign-resume" in shown.text
        assert 'class="told ok"' not in client.get("/dashboard/campaigns/run-1").text
        assert [(line.by, line.outcome) for line in read_back(service.folder).lines] == [
            ("jane", "done")
        ]

    def test_what_the_service_refuses_is_said(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        client = browser("operator")
        for fields in (
            {"type": "campaign-rollback", "name": "run-1", "to": "77"},
            {"type": "nothing"},
            {"type": "campaign-pause"},
        ):
            assert (
                'class="told bad"'
                in give(service, client, {**fields, "back": "/dashboard/campaigns/run-1"}).text
            ), fields

    def test_devices_are_tagged_and_banned(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        client, back = browser("operator"), {"back": "/dashboard/device?id=a"}
        shown = give(
            service,
            client,
            {"type": "tag-devices", "device_ids": "a", "tags": "lab, nights", **back},
        )
        assert '<span class="tag">nights</span>' in shown.text
        assert (
            "banned"
            in give(
                service,
                client,
                {"type": "ban-device", "device_id": "a", "reason": "stolen", **back},
            ).text
        )
        assert service.bench.known("a").ban is not None

    def test_a_viewer_sees_no_order_and_gives_none(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        client = browser("viewer")
        for path in PAGES:
            assert "/dashboard/orders" not in client.get(f"/dashboard/{path}").text, path
        assert give(service, client, PAUSE).status_code == 403
        assert not service.bench.campaign.paused
        assert (
            "/dashboard/orders" in browser("operator", "joe").get("/dashboard/campaigns/run-1").text
        )

    def test_a_page_of_another_site_or_port_orders_nothing(
        self, service: HttpService, browser: Callable[..., TestClient]
    ) -> None:
        """The browser says where a request comes from; where it does not say the site, the origin
        counts."""
        client, here = browser("operator"), "http://127.0.0.1"
        for site in ("cross-site", "same-site", "none", ""):
            assert (
                give(service, client, PAUSE, **{"Sec-Fetch-Site": site, "Origin": here}).status_code
                == 403
            ), site
        del client.headers["Sec-Fetch-Site"]
        for origin in ("http://127.0.0.1:81", "https://evil.example", "null", ""):
            assert give(service, client, PAUSE, Origin=origin).status_code == 403, origin
        assert not service.bench.campaign.paused
        assert "campaign run-1 is paused" in give(service, client, PAUSE, Origin=here).text

    @pytest.mark.parametrize("reason", ["x" * 201, "a\u202eb", "a\x00b"])
    def test_a_reason_that_the_api_refuses_is_refused(self, reason: str) -> None:
        with pytest.raises(
            ConfigError,
            match=r"reason must have (at most 200 characters|printable characters only)",
        ):
            read_order({"type": "ban-device", "device_id": "a", "reason": reason})

    def test_forms_become_the_orders_of_the_api(self) -> None:
        assert read_order(read_form(b"type=campaign-pause&name=a+b")) == (
            "campaign-pause",
            {"name": "a b"},
        )
        assert read_order({"type": "campaign-rollback", "name": "x", "to": "3"}) == (
            "campaign-rollback",
            {"name": "x", "to": 3},
        )
        assert read_order({"type": "tag-devices", "device_ids": "a", "tags": "x,y  z"}) == (
            "tag-devices",
            {"device_ids": ("a",), "tags": ("x", "y", "z")},
        )
        for wrong in (
            {"type": "forget-device", "device_id": "a"},
            {"type": "tag-devices", "device_ids": "a", "tags": " ,"},
            {"type": "campaign-rollback", "name": "x", "to": "three"},
            {"type": "campaign-rollback", "name": "x"},
            {"name": "x"},
        ):
            with pytest.raises(ConfigError):
                read_order(wrong)


class TestAudit:
    def test_it_is_read_from_its_end_in_parts_that_miss_and_repeat_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aggregator.operator.audit.BLOCK", 100)
        for i in range(57):
            note(tmp_path, "jane", f"order {i} {'x' * (i * 7 % 211)}", "done")
        with (tmp_path / AUDIT).open("a") as file:
            file.write('{"at_s": 1, "by"')
        found, before = list[str](), None
        while True:
            page = read_back(tmp_path, before, most=10)
            found += [line.what.split()[1] for line in page.lines]
            if (before := page.before) is None:
                break
        assert found == [str(i) for i in reversed(range(57))]

    def test_words_are_looked_for_and_a_log_that_is_not_there_has_no_line(
        self, tmp_path: Path
    ) -> None:
        assert read_back(tmp_path).lines == ()
        for by in ("jane", "joe"):
            note(tmp_path, by, json.dumps({"type": "campaign-pause"}), "done")
        assert [line.by for line in read_back(tmp_path, words="JOE pause").lines] == ["joe"]
        assert read_back(tmp_path, words="joe resume") == read_back(tmp_path, before=0)

    def test_no_more_is_read_at_once_than_a_page_may_cost(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aggregator.operator.audit.MOST_BYTES", 1000)
        for i in range(40):
            note(tmp_path, "jane", f"order {i}", "done")
        page = read_back(tmp_path, words="joe")
        assert (page.lines, page.before is not None) == ((), True)
