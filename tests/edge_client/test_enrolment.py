"""`shoal-edge enrol` and renewal, against a real service over HTTPS: what it writes, what it
refuses, and what a kill leaves."""

import argparse
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from aggregator.storage.enrolment_store import AuditRow
from edge_client.commands.enrol import enrol
from edge_client.enrolment.credentials import Credentials
from edge_client.enrolment.enrolled import fill_in
from edge_client.enrolment.exchange import ask
from edge_client.enrolment.renewal import Renewal
from edge_client.enrolment.unit import unit
from edge_client.options import parser
from tests.support.enrolment import OFFER, TRUST, EnrolmentBench, enrolment_bench
from wire.errors import ConfigError, LinkError
from wire.identity.certificates import (
    certificate_pem,
    key_digest,
    make_request,
    new_tls_key,
    public_key_of,
)
from wire.identity.enrolment import ENROL, RENEW, REQUEST_BYTES, Enrol, Enrolled, Refused
from wire.identity.keys import private_pem

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[EnrolmentBench]:
    with enrolment_bench(tmp_path / "served", serves=True) as bench:
        yield bench


def words(bench: EnrolmentBench, token: str, state: Path, *more: str) -> argparse.Namespace:
    return parser().parse_args(
        ["enrol", bench.url, token, "--state", str(state), "--wait", "0", *more]
    )


def enrolled(bench: EnrolmentBench, state: Path, *more: str) -> Credentials:
    enrol(words(bench, bench.token(), state, *more))
    return Credentials(state / "enrolled")


def is_whole(credentials: Credentials) -> bool:
    """Return True if `run` has all its files, and no key is left over."""
    key, certificate = credentials.pair()
    arguments = parser().parse_args(
        ["run", "--data", "d", "--state", str(credentials.folder.parent)]
    )
    assert fill_in(arguments) is not None
    assert key_digest(key.public_key()) == key_digest(public_key_of(certificate))
    assert (arguments.broker, arguments.fleet) == ("mqtts://broker.example", "default")
    assert arguments.trust.read_text() == TRUST
    return not (credentials.folder / "next.key").exists()


class TestEnrol:
    def test_it_writes_all_that_run_needs(self, bench: EnrolmentBench, tmp_path: Path) -> None:
        credentials = enrolled(bench, tmp_path / "state", "--device", "pi-1")
        assert is_whole(credentials)
        modes = {path.name: path.stat().st_mode & 0o077 for path in credentials.folder.iterdir()}
        assert (modes["device.pem"], credentials.folder.stat().st_mode & 0o777) == (0, 0o700)
        arguments = parser().parse_args(["run", "--data", "d", "--state", str(tmp_path / "state")])
        fill_in(arguments)
        assert (arguments.id, arguments.policy.read_text()) == ("pi-1", OFFER.policy)

    def test_again_with_the_same_token_or_without_a_network_it_says_so_and_changes_nothing(
        self, bench: EnrolmentBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        token = bench.token()
        enrol(words(bench, token, tmp_path / "state"))
        before = (tmp_path / "state" / "enrolled" / "device.pem").read_bytes()
        bench.url = "https://localhost:1"
        enrol(words(bench, token, tmp_path / "state"))
        assert "is enrolled already, until 20" in capsys.readouterr().out
        assert (tmp_path / "state" / "enrolled" / "device.pem").read_bytes() == before

    def test_what_its_owner_made_of_the_policy_stays(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        policy = enrolled(bench, tmp_path / "state", "--device", "pi-1").folder / "policy.toml"
        policy.write_text("max_epochs = 1.0\n")
        enrol(words(bench, bench.token(device_id="pi-1"), tmp_path / "state", "--again"))
        assert policy.read_text() == "max_epochs = 1.0\n"

    def test_a_token_may_come_from_a_file(self, bench: EnrolmentBench, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(bench.token() + "\n")
        enrol(words(bench, f"@{tmp_path / 'token'}", tmp_path / "state"))
        with pytest.raises(ConfigError, match="No such file"):
            enrol(words(bench, "@missing", tmp_path / "other"))

    def test_every_refusal_says_why_and_leaves_the_device_as_it_was(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        used, expired, good = bench.token(), bench.token(0.01), bench.token()
        enrol(words(bench, used, tmp_path / "first", "--device", "pi-1"))
        bench.clock.now_s += 10
        cases = {
            (
                used,
                "pi-1",
            ): "pi-1 has used this token, with another key (each device needs a token of its own)",
            (expired, "pi-2"): "this token expired",
            (
                good,
                "pi-1",
            ): "another device is enrolled as pi-1; "
            "`shoal enrol token --device pi-1` makes a token",
            (good[:-1], "pi-2"): "expected shoal1. and 68 more characters",
            (
                good[:20] + ("A" if good[20] != "A" else "B") + good[21:],
                "pi-2",
            ): "one of its characters is wrong; copy it again",
            (good, "../pi"): "device id '../pi': expected 1 to 64 characters",
        }
        for (token, name), told in cases.items():
            with pytest.raises(ConfigError) as raised:
                enrol(words(bench, token, tmp_path / "second", "--device", name))
            assert told in str(raised.value)
        assert not Credentials(tmp_path / "second" / "enrolled").exists

    def test_a_service_with_another_authority_gets_nothing(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        """Not even the token."""
        with enrolment_bench(tmp_path / "impostor", serves=True) as impostor:
            arguments = words(impostor, bench.token(), tmp_path / "state")
            with pytest.raises(
                ConfigError,
                match=r"its authority must have the token's fingerprint \w{16}, got \w{16}; it is "
                r"another service",
            ):
                enrol(arguments)
        assert not (tmp_path / "state").exists()

    def test_one_that_shows_the_right_authority_but_has_not_its_key_gets_no_token(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        with enrolment_bench(tmp_path / "impostor", serves=True) as impostor:
            object.__setattr__(impostor.office, "authority", bench.authority)
            with pytest.raises(
                ConfigError, match="its certificate is not of the expected authority"
            ):
                enrol(words(impostor, bench.token(), tmp_path / "state"))

    def test_a_devices_certificate_does_not_make_a_service(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        credentials = enrolled(bench, tmp_path / "thief")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(credentials.folder / "device.pem")
        listener = socket.create_server(("127.0.0.1", 0))
        accepted = threading.Thread(target=lambda: _handshake(context, listener))
        accepted.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match="unsuitable certificate purpose"):
            ask(url, certificate_pem(bench.authority.certificate), ENROL, Enrol("", ""))
        accepted.join()
        listener.close()

    def test_another_name_of_the_host_a_wrong_clock_and_no_network_are_told_apart(
        self, bench: EnrolmentBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = bench.url
        bench.url = url.replace("localhost", "127.0.0.1")
        with pytest.raises(
            ConfigError, match=r"not for 127\.0\.0\.1; use a name that `shoal init --tls` was given"
        ):
            enrol(words(bench, bench.token(), tmp_path / "state"))
        bench.url = "https://nowhere.invalid"
        with pytest.raises(
            LinkError, match=r"nowhere\.invalid has no address .*; is there a network"
        ):
            enrol(words(bench, bench.token(), tmp_path / "state"))
        bench.url = "https://localhost:1"
        with pytest.raises(LinkError, match=r"no connection: .*refused"):
            enrol(words(bench, bench.token(), tmp_path / "state"))
        with socket.create_server(("127.0.0.1", 0)) as other:
            threading.Thread(target=_answer_in_plain_text, args=(other,), daemon=True).start()
            bench.url = f"https://localhost:{other.getsockname()[1]}"
            with pytest.raises(ConfigError, match=r"another program .*--enrol-port") as caught:
                enrol(words(bench, bench.token(), tmp_path / "state"))
            assert "SSL" not in str(caught.value)
        for wrong in (
            "http://localhost",
            "localhost:8443",
            "https://",
            "https://localhost/path",
            "https://a:b",
        ):
            bench.url = wrong
            with pytest.raises(ConfigError, match=r"must be https://HOST|Port could not be cast"):
                enrol(words(bench, bench.token(), tmp_path / "state"))

    def test_an_answer_that_is_not_what_it_should_be_is_not_stored(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        other = bench.enrolled("pi-2", new_tls_key())
        for wrong in (
            {"certificate": other},
            {"device_id": "../pi"},
            {"device_id": "pi-9"},
            {"broker": "mqtt://plain"},
            {"trust": "nothing"},
            {"fleet": "a/b"},
        ):
            key = new_tls_key()
            answer = bench.enrol(bench.token(), key)
            values = {name: getattr(answer, name) for name in answer.__struct_fields__}
            with pytest.raises(ConfigError, match="cannot be used"):
                Credentials(tmp_path / "x").take(
                    key,
                    Enrolled(**{**values, **wrong}),
                    bench.url,
                    certificate_pem(bench.authority.certificate),
                    "",
                    time.time(),
                )
        assert not (tmp_path / "x").exists()


class TestKilled:
    @pytest.mark.full
    def test_between_any_two_steps_of_enrolment(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        """The same command again ends with the same device enrolled, and one certificate for each
        key."""
        killed, step = True, 0
        while killed:
            step += 1
            state, token = tmp_path / f"state-{step}", bench.token()
            command = ["enrol", bench.url, token, "--state", str(state), "--device", f"pi-{step}"]
            killed = kill(step, *command)
            again = subprocess.run(
                [sys.executable, "-m", "edge_client.main", *command], capture_output=True, text=True
            )
            assert again.returncode == 0, again.stderr
            assert is_whole(Credentials(state / "enrolled"))
        assert step >= 10
        with bench.store.transaction() as within:
            assert len([line for line in within.rows(AuditRow) if line.what == "enrolled"]) == step

    def test_between_any_two_steps_of_renewal(self, bench: EnrolmentBench, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from tests.edge_client.killed_enrolment import "
            "kill_before_step\n"
        )
        script += (
            "from edge_client.enrolment.credentials import Credentials; from "
            "edge_client.enrolment.renewal import Renewal\n"
        )
        script += (
            "kill_before_step(int(sys.argv[1])); Renewal(Credentials(Path(sys.argv[2])), lambda: "
            "None).renew()"
        )
        killed, step = True, 0
        while killed:
            step += 1
            credentials = enrolled(bench, tmp_path / f"state-{step}", "--device", f"pi-{step}")
            before = credentials.pair()[1]
            done = subprocess.run(
                [sys.executable, "-c", script, str(step), str(credentials.folder)],
                cwd=ROOT,
                capture_output=True,
            )
            killed = done.returncode == -signal.SIGKILL
            assert killed or done.returncode == 0, done.stderr
            Renewal(credentials, lambda: None).renew()
            assert credentials.pair()[1] != before
            assert is_whole(credentials)
        assert step >= 6

    def test_a_service_that_is_killed_before_or_after_it_has_stored_something_goes_on(
        self, tmp_path: Path
    ) -> None:
        script = (
            "import os, signal, sys; from pathlib import Path; import sqlalchemy; from "
            "tests.support.enrolment import enrolment_bench\n"
        )
        script += (
            "import tests.edge_client.test_enrolment as t; from wire.identity.certificates import "
            "read_tls_key\n"
        )
        script += "end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        script += "with enrolment_bench(Path(sys.argv[1])) as bench:\n"
        script += "    key = read_tls_key(Path(sys.argv[2]).read_bytes())\n"
        script += (
            "    if sys.argv[4] == 'commit': sqlalchemy.event.listen(bench.store._engine, "
            "'commit', end)\n"
        )
        script += "    bench.enrol(sys.argv[3], key, 'pi-1'); end()"
        for moment in ("commit", "answer"):
            folder, path = tmp_path / moment, tmp_path / f"{moment}.key"
            with enrolment_bench(folder) as bench:
                token = bench.token()
            path.write_bytes(private_pem(key := new_tls_key()))
            done = subprocess.run(
                [sys.executable, "-c", script, str(folder), str(path), token, moment],
                cwd=ROOT,
                capture_output=True,
            )
            assert done.returncode == -signal.SIGKILL, done.stderr
            with enrolment_bench(folder) as bench:
                first = bench.enrol(token, key, "pi-1")
                assert type(first).__name__ == "Enrolled"
                assert first == bench.enrol(token, key, "pi-1")
                with bench.store.transaction() as within:
                    assert [line.what for line in within.rows(AuditRow)] == ["token", "enrolled"]


class TestRenewal:
    def test_it_is_due_before_two_thirds_are_over_and_not_before_a_half_is(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        credentials = enrolled(bench, tmp_path / "state")
        for _ in range(20):
            now_s = time.time()
            for days, due in ((44, False), (60, True)):
                clock = partial(float, now_s + days * 86_400)
                assert Renewal(credentials, lambda: None, clock).is_due() is due

    def test_it_happens_by_itself_and_is_told(self, bench: EnrolmentBench, tmp_path: Path) -> None:
        credentials, told = enrolled(bench, tmp_path / "state"), threading.Event()
        before = credentials.pair()[1]
        bench.clock.now_s += 50 * 86_400
        renewal = Renewal(credentials, told.set, bench.clock)
        renewal._share = 0.5  # before its thread looks for the first time
        with renewal.at_work():
            assert told.wait(20)
        assert credentials.pair()[1].not_valid_after_utc > before.not_valid_after_utc
        assert is_whole(credentials)

    def test_a_refusal_keeps_what_is_there(self, bench: EnrolmentBench, tmp_path: Path) -> None:
        from aggregator.enrolment.desk import ban

        credentials = enrolled(bench, tmp_path / "state", "--device", "pi-1")
        before = (credentials.folder / "device.pem").read_bytes()
        ban(bench.store, "pi-1")
        with pytest.raises(ConfigError, match="refused the renewal: banned: pi-1 is banned"):
            Renewal(credentials, lambda: None).renew()
        assert (credentials.folder / "device.pem").read_bytes() == before


class TestService:
    def test_what_is_too_large_or_no_message_is_refused_and_the_next_one_is_answered(
        self, bench: EnrolmentBench
    ) -> None:
        authority = certificate_pem(bench.authority.certificate)
        large = ask(bench.url, authority, ENROL, Enrol("x" * (REQUEST_BYTES + 1), ""))
        assert isinstance(large, Refused)
        assert (large.reason, large.detail) == (
            "malformed",
            f"request of more than {REQUEST_BYTES} bytes",
        )
        strange = ask(bench.url, authority, RENEW, Enrol("x", "y"))
        assert isinstance(strange, Refused)
        assert strange.reason == "malformed"

    def test_somebody_who_guesses_is_slowed_down(self, bench: EnrolmentBench) -> None:
        authority, guessed = (
            certificate_pem(bench.authority.certificate),
            Enrol("shoal1.x", make_request(new_tls_key(), "")),
        )
        with ThreadPoolExecutor(
            8
        ) as guessers:  # one alone may be slower than the limit on a busy machine
            answers = list(
                guessers.map(lambda _: ask(bench.url, authority, ENROL, guessed), range(150))
            )
        reasons = [answer.reason for answer in answers if isinstance(answer, Refused)]
        assert {*reasons} == {"token", "too-many"}
        assert reasons.count("too-many") > 10


def test_run_takes_what_the_command_line_names_before_what_is_enrolled(
    bench: EnrolmentBench, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    enrolled(bench, state, "--device", "pi-1")
    base = ["run", "--data", "d", "--state"]
    arguments = parser().parse_args([*base, str(state), "--id", "other"])
    assert fill_in(arguments) is None
    assert (arguments.id, arguments.broker, arguments.cert) == ("other", "mqtt://localhost", None)
    arguments = parser().parse_args([*base, str(state), "--broker", "mqtts://elsewhere"])
    fill_in(arguments)
    assert (arguments.id, arguments.broker) == ("pi-1", "mqtts://elsewhere")
    for wrong, told in (
        (["--enrolled", str(tmp_path)], "has no device.pem"),
        ([], "--id is missing; set it, or enrol the device"),
    ):
        with pytest.raises(ConfigError, match=told):
            fill_in(parser().parse_args([*base, str(tmp_path / "none"), *wrong]))
    with pytest.raises(ConfigError, match=r"--id must be pi-1, the device of .*enrolled, got x"):
        fill_in(
            parser().parse_args(
                [*base, str(state), "--id", "x", "--enrolled", str(state / "enrolled")]
            )
        )


def test_the_deployed_unit_is_the_one_that_is_installed() -> None:
    text = (ROOT / "deploy" / "systemd" / "shoal-edge.service").read_text()
    assert text == unit(
        Path("/opt/shoal/bin/shoal-edge"), Path("/var/lib/shoal/data"), Path("/var/lib/shoal/state")
    )
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    parser().parse_args(line.split()[1:])


def test_an_installation_that_cannot_follow_spends_no_token(
    bench: EnrolmentBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _name: "/bin/false")
    token = bench.token()
    with pytest.raises(ConfigError, match="can write only below /var/lib/shoal"):
        enrol(words(bench, token, tmp_path / "state", "--install", "--data", "/data"))
    enrol(words(bench, token, tmp_path / "state"))
    assert is_whole(Credentials(tmp_path / "state" / "enrolled"))


@pytest.mark.parametrize("state", ["/tmp/state", "/var/lib/shoal-other/state"])
def test_a_unit_is_installed_only_where_it_can_write(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_client.enrolment import unit as module

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _name: "/bin/false")
    with pytest.raises(ConfigError, match="can write only below /var/lib/shoal"):
        module.install(Path(state), None, Path("/data"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="--install needs root"):
        module.install(Path("/var/lib/shoal/state"), None, Path("/data"))


def kill(step: int, *command: str) -> bool:
    """Run the command, and kill it before this step; whether it came so far."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.edge_client.killed_enrolment", str(step), *command],
        cwd=ROOT,
        capture_output=True,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def _answer_in_plain_text(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection, suppress(ConnectionError):
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.recv(1000)


def _handshake(context: ssl.SSLContext, listener: socket.socket) -> None:
    with listener.accept()[0] as connection:
        try:
            context.wrap_socket(connection, server_side=True)
        except OSError:
            return
