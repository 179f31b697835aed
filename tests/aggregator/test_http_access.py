"""Access over HTTP: roles, limits, and the audit log."""

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from aggregator.http.tokens import FILE, Caller, TokenFile
from host.loopback import is_loopback
from simulation.datasets.windows import FleetData
from tests.aggregator.http_service import HttpService, http_service
from wire.errors import ConfigError

Make = Callable[..., tuple[HttpService, TestClient]]
PAUSE = "/campaigns/run-1/pause"


@pytest.fixture
def make(fleet: FleetData, tmp_path: Path) -> Make:
    def make(**given: Any) -> tuple[HttpService, TestClient]:
        service = http_service(fleet, tmp_path, **given)
        return service, TestClient(service.api, "http://127.0.0.1", raise_server_exceptions=False)

    return make


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def audited(service: HttpService) -> list[dict[str, Any]]:
    path = service.folder / "audit.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class TestRoles:
    def test_without_a_token_on_this_machine_everybody_reads_and_nobody_orders(
        self, make: Make
    ) -> None:
        service, client = make()
        assert (
            client.get("/run").status_code,
            client.get("/run", headers={"Authorization": "Basic eA=="}).status_code,
        ) == (200, 200)
        assert client.post(PAUSE).status_code == 401
        assert audited(service)[0]["what"] == f"POST {PAUSE}"

    def test_without_a_token_a_page_that_asks_by_a_name_of_its_own_reads_nothing(
        self, make: Make
    ) -> None:
        """DNS rebinding: the browser on this machine believes that the address is the page's."""
        service, client = make()
        for name in ("evil.example", "evil.example:27080", "10.0.0.7", "", "[::1"):
            assert client.get("/run", headers={"Host": name}).status_code == 403, name
        for name in ("localhost:27080", "127.0.0.1", "[::1]:27080"):
            assert client.get("/run", headers={"Host": name}).status_code == 200, name
        viewer = service.tokens.new("grafana", "viewer")
        assert (
            client.get("/run", headers={**bearer(viewer), "Host": "shoal.example"}).status_code
            == 200
        )

    def test_orders_that_a_viewer_tries_again_and_again_are_few_lines_of_the_audit_log(
        self, make: Make
    ) -> None:
        service, client = make()
        viewer = service.tokens.new("grafana", "viewer")
        assert {client.post(PAUSE, headers=bearer(viewer)).status_code for _ in range(50)} == {403}
        assert [line["by"] for line in audited(service)].count("grafana") == 1

    def test_from_the_first_token_on_everything_but_health_needs_one_at_once(
        self, make: Make
    ) -> None:
        service, client = make()
        viewer = service.tokens.new("grafana", "viewer")
        for path in ("/run", "/metrics", "/ready", "/openapi.json", "/nothing"):
            refused = client.get(path)
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (
                401,
                'Bearer realm="shoal"',
            ), path
        assert client.get("/health").status_code == 200
        assert client.get("/run", headers=bearer(viewer)).status_code == 200
        service.tokens.revoke("grafana")
        assert client.get("/run", headers=bearer(viewer)).status_code == 401
        assert client.get("/run").status_code == 401, "to revoke the last token opens nothing"

    def test_where_other_machines_reach_it_nobody_reads_without_a_token(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        service, client = make(host="0.0.0.0")
        assert "there is no token, so it answers only /health" in caplog.text
        assert (client.get("/run").status_code, client.get("/health").status_code) == (401, 200)
        assert (
            client.get("/run", headers=bearer(service.tokens.new("v", "viewer"))).status_code == 200
        )

    def test_a_viewer_gives_no_orders_and_an_operator_does(self, make: Make) -> None:
        service, client = make()
        tokens = {role: service.tokens.new(f"the-{role}", role) for role in ("viewer", "operator")}
        with service.running():
            refused = client.post(PAUSE, headers=bearer(tokens["viewer"]))
            done = client.post(PAUSE, headers=bearer(tokens["operator"]))
        assert (
            refused.status_code,
            'error="insufficient_scope"' in refused.headers["WWW-Authenticate"],
        ) == (403, True)
        assert done.json() == {
            "state": "done",
            "text": "campaign run-1 is paused; `shoal campaign resume` lets it go on",
        }
        assert [(line["by"], line["outcome"]) for line in audited(service)] == [
            ("the-viewer", "refused"),
            ("the-operator", "done"),
        ]

    def test_a_file_that_cannot_be_read_lets_nobody_in(self, make: Make) -> None:
        service, client = make()
        token = service.tokens.new("v", "viewer")
        (service.folder / FILE).write_text("[{")
        refused = client.get("/run", headers=bearer(token))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")

    def test_another_verification_takes_the_place_of_tokens(self, make: Make) -> None:
        def verify(token: str) -> Caller | None:
            return (
                Caller("jane@example.org", "operator")
                if token == "from.an.identity-provider"
                else None
            )

        service, client = make(verify=verify, required=lambda: True)
        assert client.get("/run", headers=bearer("another")).status_code == 401
        with service.running():
            assert (
                client.post(PAUSE, headers=bearer("from.an.identity-provider")).status_code == 200
            )
        assert audited(service)[-1]["by"] == "jane@example.org"


class TestRates:
    def test_failed_attempts_are_limited_by_address_and_a_valid_token_never_suffers(
        self, make: Make
    ) -> None:
        now = [0.0]
        service, client = make(clock=lambda: now[0])
        token = service.tokens.new("v", "viewer")
        answers = [client.get("/run", headers=bearer("wrong")) for _ in range(30)]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 20
        assert int(answers[-1].headers["Retry-After"]) == 5
        assert client.get("/run", headers=bearer(token)).status_code == 200
        assert len(audited(service)) == 11, "a flood is one line a minute"
        now[0] += 5
        assert client.get("/run", headers=bearer("wrong")).status_code == 401
        scraped = client.get("/metrics", headers=bearer(token)).text
        assert 'shoal_http_refused_total{reason="wrong-token"} 11.0' in scraped
        assert 'shoal_http_refused_total{reason="too-many"} 20.0' in scraped

    def test_requests_of_a_token_are_limited_and_another_token_is_not(self, make: Make) -> None:
        now = [0.0]
        service, client = make(clock=lambda: now[0], burst=5.0, per_s=0.5)
        busy, other = (service.tokens.new(name, "viewer") for name in ("busy", "other"))
        answers = [client.get("/models", headers=bearer(busy)) for _ in range(7)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
        assert (
            answers[-1].headers["Retry-After"],
            client.get("/models", headers=bearer(other)).status_code,
        ) == ("2", 200)
        now[0] += 2
        assert client.get("/models", headers=bearer(busy)).status_code == 200


class TestTokenFile:
    def test_the_file_has_hashes_and_its_owner_alone_reads_it(self, tmp_path: Path) -> None:
        token = TokenFile(tmp_path).new("v", "viewer")
        path = tmp_path / FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert token not in path.read_text()
        assert token.removeprefix("shoal-") not in path.read_text()
        assert TokenFile(tmp_path).verify(token) == Caller("v", "viewer")

    @pytest.mark.parametrize("wrong", ["", "x", "shoal-", "\udc80", "ß" * 10_000])
    def test_what_is_no_token_is_nobody_s(self, tmp_path: Path, wrong: str) -> None:
        tokens = TokenFile(tmp_path)
        assert tokens.verify(wrong) is None
        token = tokens.new("v", "viewer")
        assert (tokens.verify(wrong), tokens.verify(token[:-1]), tokens.verify(token + "x")) == (
            None,
            None,
            None,
        )

    def test_a_token_whose_time_is_over_is_nobody_s_and_its_name_is_free(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = TokenFile(tmp_path)
        token = tokens.new("v", "viewer", 60)
        assert tokens.verify(token) == Caller("v", "viewer")
        with pytest.raises(ConfigError, match="Token 'v' exists already"):
            tokens.new("v", "operator")
        now_s = time.time()
        monkeypatch.setattr("aggregator.http.tokens.time.time", lambda: now_s + 61)
        assert tokens.verify(token) is None
        assert tokens.verify(tokens.new("v", "operator")) == Caller("v", "operator")

    @pytest.mark.parametrize(
        ("name", "expires_s"), [("", None), ("a/b", None), ("v", 0.0), ("v", 1e12)]
    )
    def test_a_token_that_cannot_be_is_refused(
        self, tmp_path: Path, name: str, expires_s: float | None
    ) -> None:
        with pytest.raises(ConfigError):
            TokenFile(tmp_path).new(name, "viewer", expires_s)
        assert not (tmp_path / FILE).exists()

    def test_there_is_nothing_to_revoke_or_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"No token 'v'\. Known tokens: none\."):
            TokenFile(tmp_path).revoke("v")
        with pytest.raises(ConfigError, match=r"`shoal serve --folder .*/none` makes it"):
            TokenFile(tmp_path / "none").new("v", "viewer")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("board.local", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
