"""The compose file: it is one, it gives little away, it mounts what `deploy/compose/setup` makes,
and the broker starts with that."""

import json
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from aggregator.enrolment.mosquitto import find_plugin
from aggregator.http.tokens import TokenFile
from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.deploy.tools import COMPOSE, DEPLOY, GIVEN, debian, run, setup, tool
from tests.end_to_end.fleet import find_mosquitto


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """compose.yaml with the variables of `setup` filled in."""
    text = (COMPOSE / "compose.yaml").read_text()
    filled = re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda m: GIVEN.get(m[1]) or m[2], text)
    read: dict[str, Any] = yaml.safe_load(filled)
    return read


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder that `setup` makes for a broker on this machine."""
    setup(tmp_path)
    return tmp_path / "home"


def test_it_is_what_the_specification_of_compose_permits(compose: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(
        {key: value for key, value in compose.items() if not key.startswith("x-")}
    )


def test_a_compose_program_reads_it(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("".join(f"{name}={value}\n" for name, value in GIVEN.items()))
    debian("podman", "podman")  # which podman-compose asks for its version
    done = run(
        tool("podman-compose"),
        "--env-file",
        tmp_path / "env",
        "-f",
        COMPOSE / "compose.yaml",
        "config",
    )
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == {
        "broker",
        "database",
        "aggregator",
        "prometheus",
        "alertmanager",
        "grafana",
    }


def test_no_service_can_write_its_root_gain_privileges_or_be_another_version_tomorrow(
    compose: dict[str, Any],
) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"] == "1000:1000", name
        assert re.search(r":v?\d+\.\d+", service["image"]), name
        assert (
            "healthcheck" in service
            or "HEALTHCHECK" in (DEPLOY / "containers" / f"{name}.Dockerfile").read_text()
        ), name


def test_no_secret_is_in_the_environment(compose: dict[str, Any]) -> None:
    telling = re.compile("password|token|secret|key", re.IGNORECASE)
    named = {
        variable: value
        for service in compose["services"].values()
        for variable, value in service.get("environment", {}).items()
    }
    secrets = {variable for variable in named if telling.search(variable)}
    assert secrets == {"POSTGRES_PASSWORD_FILE", "GF_SECURITY_ADMIN_PASSWORD__FILE"}
    assert all(str(named[variable]).startswith("/run/secrets/") for variable in secrets)
    used = {
        secret for service in compose["services"].values() for secret in service.get("secrets", [])
    }
    assert used == set(compose["secrets"])


def test_what_is_open_beyond_the_machine_is_what_devices_need(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert sorted(port for port in ports if not port.startswith("127.0.0.1:")) == [
        "8443:8443",
        "8883:8883",
    ]


def test_what_is_mounted_is_what_setup_makes(
    compose: dict[str, Any], made: Path, tmp_path: Path
) -> None:
    volumes = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
    ]
    places = [*volumes, *(secret["file"] for secret in compose["secrets"].values())]
    assert len(places) > 10
    missing = [
        p
        for p in places
        if not (
            COMPOSE / p if p.startswith(".") else Path(p.replace("/srv/shoal", str(made)))
        ).exists()
    ]
    assert missing == []
    open_to_others = [
        p
        for p in made.rglob("*")
        if p.stat().st_mode & 0o077 and p.suffix not in (".pem", ".conf", ".voucher", ".pub", "")
    ]
    assert [
        p.name for p in open_to_others if p.parent.name in ("secrets", "served") and not p.is_dir()
    ] == []
    assert (made / "alertmanager.yml").stat().st_mode & 0o077 == 0, (
        "a webhook's URL may be a secret"
    )
    assert not (made / "bundle" / "signing.key").exists(), "the root key stays where it is"
    assert (
        "plugin /usr/lib/mosquitto_dynamic_security.so"
        in (made / "broker" / "mosquitto.conf").read_text()
    )
    assert set(re.findall(r"^(\w+)=", (tmp_path / "env").read_text(), re.MULTILINE)) == {
        *GIVEN,
        "SHOAL_IMAGE",
    }
    tokens = TokenFile(made / "served")
    assert [(held.name, held.role) for held in tokens.all()] == [("prometheus", "viewer")]


def test_setup_keeps_what_is_there(made: Path, tmp_path: Path) -> None:
    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}

    before = kept()
    (made / "secrets" / "prometheus-token").unlink()
    setup(tmp_path)
    after = kept()
    assert {path.name for path in before if after[path] != before[path]} == {
        "prometheus-token",
        "http-tokens.json",
    }


def test_nobody_is_told_of_alerts_until_somebody_is_named(tmp_path: Path) -> None:
    said = setup(tmp_path)
    file = tmp_path / "home" / "alertmanager.yml"
    assert f"nobody is told; write a receiver into {file}" in said.stdout
    assert yaml.safe_load(file.read_text())["receivers"] == [{"name": "operator"}]
    refused = setup(tmp_path, fails=True, webhook="https://hooks.example/T0/x?a=b")
    assert (
        refused.stderr
        == f"error: ALERT_WEBHOOK: {file} is there already: write it there, or delete the file\n"
    )
    file.unlink()
    for _ in range(2):  # the same again changes nothing
        said = setup(tmp_path, webhook="https://hooks.example/T0/x?a=b")
        assert "nobody is told" not in said.stdout
        (receiver,) = yaml.safe_load(file.read_text())["receivers"]
        assert receiver == {
            "name": "operator",
            "webhook_configs": [{"url": "https://hooks.example/T0/x?a=b"}],
        }


@pytest.mark.parametrize(
    "url",
    [
        "hooks.example",
        "https://a.example/'x",
        "https://a.example/ x",
        "file:///etc/passwd",
        "https://",
    ],
)
def test_what_is_no_webhook_is_one_line(tmp_path: Path, url: str) -> None:
    done = setup(tmp_path, fails=True, webhook=url)
    assert done.stderr.startswith("error: ALERT_WEBHOOK: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fleet.example",), "usage: "),
        (("", "."), "HOST is empty"),
        (("fleet.example", "/nowhere"), "BUNDLE /nowhere: there is no such folder"),
        (("fleet.example", "/"), "it has no device.shoal"),
        (("fleet.example", "/", "/tmp/a b"), "expected letters, digits"),
    ],
)
def test_what_cannot_be_used_is_one_line(words: tuple[str, ...], told: str) -> None:
    done = run(COMPOSE / "setup", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert told in done.stderr


def test_the_broker_of_setup_starts_and_asks_for_a_certificate(tmp_path: Path) -> None:
    mosquitto, plugin = find_mosquitto(), find_plugin()
    if plugin is None:
        pytest.skip(
            "Mosquitto has no dynamic security here: apt-get install mosquitto would run this"
        )
    setup(tmp_path, str(plugin))
    configuration, port = tmp_path / "home" / "broker" / "mosquitto.conf", free_port()
    configuration.write_text(
        configuration.read_text().replace("listener 8883", f"listener {port} 127.0.0.1")
    )
    with (tmp_path / "log").open("w") as log:
        broker = subprocess.Popen([mosquitto, "-c", str(configuration)], stdout=log, stderr=log)
    try:
        trusted = ssl.create_default_context(cafile=str(tmp_path / "home" / "served" / "ca.pem"))
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), 5) as link:
                    safe = trusted.wrap_socket(link, server_hostname="broker")
                    with (
                        safe,
                        pytest.raises(
                            ssl.SSLError, match=r"(?i)certificate required|handshake failure"
                        ),
                    ):
                        safe.recv(1)
                return
            except ConnectionRefusedError:
                assert broker.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)
        raise AssertionError("the broker did not listen: " + (tmp_path / "log").read_text())
    finally:
        stop_processes([broker])
