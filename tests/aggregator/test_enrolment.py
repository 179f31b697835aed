"""Certificates for devices: tokens, names, renewals, bans, and attacks."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from aggregator.enrolment import service
from aggregator.enrolment.authority import FILES, hosts_of, make_authority, read_authority
from aggregator.enrolment.desk import approve, ban, forget, reject
from aggregator.enrolment.mosquitto import CONFIGURATION, make_broker_folder, renew_broker
from aggregator.http.guard import Rates
from aggregator.maintenance.backup import KEYS
from aggregator.storage.enrolment_store import (
    FILE,
    AuditRow,
    BanRow,
    DeviceRow,
    EnrolmentStore,
    open_enrolments,
)
from tests.support.enrolment import EnrolmentBench, enrolment_bench
from wire.errors import ConfigError
from wire.identity.certificates import (
    certificate_digest,
    certificate_pem,
    check_issued,
    common_name,
    make_request,
    new_tls_key,
    read_certificate,
    read_tls_key,
    sign_text,
)
from wire.identity.enrolment import (
    Answer,
    Enrol,
    Enrolled,
    Refused,
    Renew,
    Renewed,
    Token,
    Waiting,
    read_token,
    renewal_text,
)


def test_the_tags_of_devices_are_read_from_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[EnrolmentStore] = []
    closed: list[EnrolmentStore] = []
    close = EnrolmentStore.close

    def open_counted(*args: Any) -> EnrolmentStore:
        stores.append(open_enrolments(*args))
        return stores[-1]

    def close_counted(store: EnrolmentStore) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(service, "open_enrolments", open_counted)
    monkeypatch.setattr(EnrolmentStore, "close", close_counted)
    folder = tmp_path / "served"
    with service.enrolled_tags(folder, "") as tags_of:
        assert (tags_of("pi-1"), stores) == ((), []), "nobody has enrolled here"
        with enrolment_bench(folder) as bench:
            bench.enrol(bench.token(tags=("lab", "left")), name="pi-1")
            assert [tags_of(d) for d in ("pi-1", "pi-2", "pi-1")] == [
                ("lab", "left"),
                (),
                ("lab", "left"),
            ]
        assert len(stores) == 1
        assert stores[0] not in closed
    assert stores[0] in closed


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[EnrolmentBench]:
    with enrolment_bench(tmp_path / "served") as bench:
        yield bench


def reason(answer: Answer) -> str:
    assert isinstance(answer, Refused), answer
    return answer.reason


def certificate(answer: Answer) -> x509.Certificate:
    assert isinstance(answer, Enrolled | Renewed), answer
    return read_certificate(answer.certificate)


class TestTokens:
    def test_a_token_serves_one_key_and_that_one_again_and_again(
        self, bench: EnrolmentBench
    ) -> None:
        token, key = bench.token(), new_tls_key()
        first = bench.enrol(token, key, "pi-1")
        assert bench.enrol(token, key, "pi-1") == first == bench.enrol(token, key)
        assert reason(bench.enrol(token, name="pi-1")) == "used"
        assert reason(bench.enrol(token, name="pi-2")) == "used"

    def test_a_token_that_was_used_in_time_answers_its_key_later_too(
        self, bench: EnrolmentBench
    ) -> None:
        used, unused, key = bench.token(60.0), bench.token(60.0), new_tls_key()
        first = bench.enrol(used, key, "pi-1")
        bench.clock.now_s += 61
        assert bench.enrol(used, key, "pi-1") == first
        assert reason(bench.enrol(unused, key, "pi-1")) == "expired"

    def test_two_keys_at_the_same_moment_get_one_certificate(self, bench: EnrolmentBench) -> None:
        token, answers = bench.token(), []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(bench.enrol(token, name=f"pi-{n}")))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(type(answer).__name__ for answer in answers) == ["Enrolled"] + ["Refused"] * 7

    def test_a_guessed_damaged_or_foreign_token_is_none(self, bench: EnrolmentBench) -> None:
        bench.token()
        guessed = str(
            Token(secrets.token_bytes(16), certificate_digest(bench.authority.certificate))
        )
        for wrong in (
            guessed,
            guessed[:-1],
            "",
            "shoal1." + "A" * 68,
            "x" * 10_000,
            "' OR 1=1 --",
            "shoal1.\u00e9",
        ):
            assert reason(bench.enrol(wrong, name="pi-1")) == "token"

    def test_the_database_and_the_audit_have_no_token(self, bench: EnrolmentBench) -> None:
        token = bench.token(tags=("lab",))
        bench.enrol(token, name="pi-1")
        held = b"".join(path.read_bytes() for path in bench.folder.glob(f"{FILE}*"))
        secret = read_token(token).secret
        assert token.encode() not in held
        assert secret not in held
        assert secret.hex().encode() not in held

    def test_tags_are_the_devices(self, bench: EnrolmentBench) -> None:
        bench.enrol(bench.token(tags=("lab", "left")), name="pi-1")
        with bench.store.transaction() as within:
            (device,) = within.rows(DeviceRow)
        assert device.tags == ("lab", "left")

    @pytest.mark.parametrize("seconds", [0.0, -1.0, 1e12, float("nan")])
    def test_a_token_for_no_time_or_for_ever_is_not_made(
        self, bench: EnrolmentBench, seconds: float
    ) -> None:
        with pytest.raises(ConfigError, match="expires must be above 0 s and at most a year, got "):
            bench.token(seconds)

    def test_one_that_is_taken_back_is_none(self, bench: EnrolmentBench) -> None:
        token = bench.token()
        assert "taken back" in reject(bench.store, read_token(token).hash[:12])
        assert reason(bench.enrol(token)) == "token"
        with pytest.raises(
            ConfigError,
            match="Device % does not wait for approval: no device has asked",
        ):
            reject(bench.store, "%")


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "../etc/passwd",
            "a/b",
            "+",
            "#",
            "default@aggregator",
            "default@operator",
            "x" * 65,
            "a b",
            "a\nb",
            "pi-1\x00",
            "é",
        ],
    )
    def test_a_name_that_is_no_devices_id_is_refused(
        self, bench: EnrolmentBench, name: str
    ) -> None:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name, _validate=False)])
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(subject)
            .sign(new_tls_key(), hashes.SHA256())
        )
        pem = request.public_bytes(serialization.Encoding.PEM).decode()
        token = bench.token()
        assert reason(bench.office.answer(Enrol(token, pem), "test")) == "malformed"
        assert isinstance(bench.enrol(token, name="pi-1"), Enrolled), "and the token is not used up"

    def test_a_token_for_one_id_gives_no_other(self, bench: EnrolmentBench) -> None:
        token = bench.token(device_id="pi-1")
        assert reason(bench.enrol(token, name="pi-2")) == "other-name"
        answer = bench.enrol(token)
        assert isinstance(answer, Enrolled)
        assert (answer.device_id, common_name(certificate(answer).subject)) == ("pi-1", "pi-1")

    def test_nobody_gets_the_id_of_another_but_for_a_token_that_says_so(
        self, bench: EnrolmentBench
    ) -> None:
        bench.enrolled("pi-1", new_tls_key())
        assert reason(bench.enrol(bench.token(), name="pi-1")) == "taken"
        token, key = bench.token(device_id="pi-1"), new_tls_key()
        assert isinstance(bench.enrol(token, key), Enrolled)
        bench.enrol(bench.token(device_id="pi-1"), new_tls_key())
        assert reason(bench.enrol(token, key)) == "taken", (
            "a token that replaced a device does not do so again"
        )

    def test_without_any_name_it_is_one_of_the_key(self, bench: EnrolmentBench) -> None:
        token, key = bench.token(), new_tls_key()
        first, again = bench.enrol(token, key), bench.enrol(token, key)
        assert isinstance(first, Enrolled)
        assert first == again
        assert first.device_id.startswith("device-")

    def test_a_certificate_has_what_the_service_says_and_nothing_of_the_request(
        self, bench: EnrolmentBench
    ) -> None:
        key = new_tls_key()
        builder = x509.CertificateSigningRequestBuilder().subject_name(
            x509.Name(
                [
                    x509.NameAttribute(x509.NameOID.COMMON_NAME, "pi-1"),
                    x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "root"),
                ]
            )
        )
        builder = builder.add_extension(x509.BasicConstraints(True, None), True)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName("broker.example")]), False
        )
        pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
        made = certificate(bench.office.answer(Enrol(bench.token(), pem), "test"))
        assert check_issued(made, bench.authority.certificate) == "pi-1"
        assert [attribute.value for attribute in made.subject] == ["pi-1"]
        assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
        with pytest.raises(x509.ExtensionNotFound):
            made.extensions.get_extension_for_class(x509.SubjectAlternativeName)

    def test_other_keys_and_requests_that_their_key_has_not_signed_are_refused(
        self, bench: EnrolmentBench
    ) -> None:
        def request(key: "rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey") -> str:
            made = (
                x509.CertificateSigningRequestBuilder()
                .subject_name(x509.Name([]))
                .sign(key, hashes.SHA256())
            )
            return made.public_bytes(serialization.Encoding.PEM).decode()

        good = x509.load_pem_x509_csr(make_request(new_tls_key(), "pi-1").encode()).public_bytes(
            serialization.Encoding.DER
        )
        forged = (
            x509.load_der_x509_csr(good.replace(b"pi-1", b"pi-2"))
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )
        rsa_key = rsa.generate_private_key(65537, 2048)
        for pem in (
            request(rsa_key),
            request(ec.generate_private_key(ec.SECP384R1())),
            forged,
            "",
            "x" * 9000,
            certificate_pem(bench.authority.certificate),
        ):
            assert reason(bench.office.answer(Enrol(bench.token(), pem), "test")) == "malformed"


class TestApproval:
    def test_a_device_waits_until_it_is_approved(self, bench: EnrolmentBench) -> None:
        token, key = bench.token(approve=True), new_tls_key()
        assert isinstance(bench.enrol(token, key, "pi-1"), Waiting)
        assert isinstance(bench.enrol(token, key, "pi-1"), Waiting)
        assert reason(bench.enrol(token, name="pi-1")) == "used"
        approve(bench.store, "pi-1")
        assert isinstance(bench.enrol(token, key, "pi-1"), Enrolled)
        with pytest.raises(ConfigError, match="it is enrolled"):
            approve(bench.store, "pi-1")

    def test_one_that_is_rejected_stays_so(self, bench: EnrolmentBench) -> None:
        token, key = bench.token(approve=True), new_tls_key()
        bench.enrol(token, key, "pi-1")
        reject(bench.store, "pi-1")
        assert reason(bench.enrol(token, key, "pi-1")) == "rejected"


class TestRenewal:
    def test_the_key_of_the_certificate_gets_another_also_twice(
        self, bench: EnrolmentBench
    ) -> None:
        old, new = new_tls_key(), new_tls_key()
        pem = bench.enrolled("pi-1", old)
        bench.clock.now_s += 40 * 86_400
        first = bench.renew(pem, old, new, "pi-1")
        assert bench.renew(pem, old, new, "pi-1") == first, "its answer was lost"
        assert certificate(first).not_valid_after_utc > read_certificate(pem).not_valid_after_utc
        newest = new_tls_key()
        assert isinstance(first, Renewed)
        assert isinstance(bench.renew(first.certificate, new, newest, "pi-1"), Renewed)
        assert reason(bench.renew(pem, old, new, "pi-1")) == "superseded"

    def test_a_key_that_was_copied_does_not_go_unseen(self, bench: EnrolmentBench) -> None:
        old = new_tls_key()
        pem = bench.enrolled("pi-1", old)
        assert isinstance(bench.renew(pem, old, new_tls_key(), "pi-1"), Renewed)
        assert reason(bench.renew(pem, old, new_tls_key(), "pi-1")) == "superseded"

    def test_nobody_renews_as_another(self, bench: EnrolmentBench) -> None:
        key, other = new_tls_key(), new_tls_key()
        own, others = bench.enrolled("pi-1", key), bench.enrolled("pi-2", other)
        assert reason(bench.renew(own, key, new_tls_key(), "pi-2")) == "other-name"
        assert reason(bench.renew(others, key, new_tls_key(), "pi-2")) == "malformed", (
            "signed by the key of another certificate"
        )
        assert reason(bench.renew(own, key, new_tls_key(), "")) == "other-name"
        request = make_request(new_tls_key(), "pi-1")
        signed_for_another = sign_text(key, renewal_text(make_request(new_tls_key(), "pi-1")))
        for signature in (signed_for_another, "", "zz", "00" * 70):
            assert (
                reason(bench.office.answer(Renew(own, request, signature), "test")) == "malformed"
            )

    def test_certificates_of_another_authority_or_of_servers_or_roles_are_refused(
        self, bench: EnrolmentBench, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        key, now_s = new_tls_key(), bench.clock()
        other = make_authority(tmp_path / "other", "default", ["localhost"], now_s)
        strange = [
            other.issue(key.public_key(), "pi-1", now_s),
            bench.authority.issue(key.public_key(), "pi-1", now_s, hosts=["pi-1"]),
            bench.authority.issue(key.public_key(), "default@aggregator", now_s),
        ]
        for made in strange:
            pem = made.public_bytes(serialization.Encoding.PEM).decode()
            assert reason(bench.renew(pem, key, new_tls_key(), "pi-1")) == "malformed"

    def test_one_that_has_ended_needs_a_token(self, bench: EnrolmentBench) -> None:
        key = new_tls_key()
        pem = bench.enrolled("pi-1", key)
        bench.clock.now_s += 91 * 86_400
        answer = bench.renew(pem, key, new_tls_key(), "pi-1")
        assert reason(answer) == "malformed"
        assert isinstance(answer, Refused)
        assert "valid from" in answer.detail

    def test_a_device_that_was_forgotten_does_not_renew(self, bench: EnrolmentBench) -> None:
        key = new_tls_key()
        pem = bench.enrolled("pi-1", key)
        forget(bench.store, "pi-1")
        assert reason(bench.renew(pem, key, new_tls_key(), "pi-1")) == "unknown-device"


class TestBans:
    def test_a_banned_device_neither_renews_nor_enrols_until_it_is_restored(
        self, bench: EnrolmentBench
    ) -> None:
        token, key = bench.token(), new_tls_key()
        answer = bench.enrol(token, key, "pi-1")
        ban(bench.store, "pi-1")
        ban(bench.store, "pi-1")
        pem = certificate(answer).public_bytes(serialization.Encoding.PEM).decode()
        assert reason(bench.renew(pem, key, new_tls_key(), "pi-1")) == "banned"
        assert reason(bench.enrol(token, key, "pi-1")) == "banned"
        assert reason(bench.enrol(bench.token(device_id="pi-1"), new_tls_key())) == "banned"
        forget(bench.store, "pi-1")
        assert reason(bench.enrol(bench.token(), name="pi-1")) == "banned"
        ban(bench.store, "pi-1", lifted=True)
        assert reason(bench.enrol(token, key, "pi-1")) == "token", (
            "it was forgotten with the device"
        )
        assert isinstance(bench.enrol(bench.token(), key, "pi-1"), Enrolled)

    def test_a_spent_token_does_not_bring_a_forgotten_device_back(
        self, bench: EnrolmentBench
    ) -> None:
        token, key = bench.token(), new_tls_key()
        bench.enrolled("other", new_tls_key())
        assert isinstance(bench.enrol(token, key, "pi-1"), Enrolled)
        with bench.store.transaction() as within:
            within.drop(DeviceRow, device_id="pi-1")  # as a copy of the database may have it
        assert reason(bench.enrol(token, key, "pi-1")) == "used"
        forget(bench.store, "pi-1")
        assert reason(bench.enrol(token, key, "pi-1")) == "token"

    def test_an_id_of_the_registry_is_enrolled_by_a_token_for_it_alone(
        self, bench: EnrolmentBench
    ) -> None:
        """The registry may have tags for it, such as a canary's."""
        bench.known.add("pi-7")
        assert reason(bench.enrol(bench.token(), name="pi-7")) == "taken"
        assert isinstance(bench.enrol(bench.token(device_id="pi-7"), name="pi-7"), Enrolled)
        assert isinstance(bench.enrol(bench.token(), name="pi-8"), Enrolled)

    def test_each_act_is_a_line_of_the_audit(self, bench: EnrolmentBench) -> None:
        key, new = new_tls_key(), new_tls_key()
        pem = bench.enrolled("pi-1", key)
        bench.renew(pem, key, new, "pi-1")
        bench.renew(pem, key, new, "pi-1")
        ban(bench.store, "pi-1")
        ban(bench.store, "pi-1", lifted=True)
        with bench.store.transaction() as within:
            lines = within.rows(AuditRow, 10)
        assert [line.what for line in lines] == [
            "token",
            "enrolled",
            "renewed",
            "banned",
            "restored",
        ]
        assert {line.device_id for line in lines[1:]} == {"pi-1"}


def test_rates_bound_an_address_and_all_of_them() -> None:
    now_s = 0.0
    rates = Rates(lambda: now_s, burst=3, per_s=1, burst_all=8, per_s_all=2)
    assert [rates.wait_s("a") == 0 for _ in range(5)] == [True] * 3 + [False] * 2
    assert [rates.wait_s("b") == 0 for _ in range(3)] == [True] * 3
    assert [rates.wait_s(f"c{n}") == 0 for n in range(4)] == [True, True, False, False]
    now_s = 2.0
    assert [rates.wait_s("a") == 0 for _ in range(3)] == [True, True, False]
    for n in range(10_000):
        rates.wait_s(str(n))
    assert len(rates._left) <= 4096


def test_nobody_fills_the_limit_of_all_by_more_addresses_than_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aggregator.http.guard.MOST_CALLERS", 8)
    rates = Rates(lambda: 0.0, burst=1, per_s=1, burst_all=20, per_s_all=1)
    callers = [str(number // 2) for number in range(200)]  # each is refused by its own limit too
    assert [rates.wait_s(caller) == 0 for caller in callers].count(True) == 20


def test_the_authority_is_the_same_after_a_restart_and_its_keys_are_its_owners(
    tmp_path: Path,
) -> None:
    first = make_authority(tmp_path, "default", ["localhost"], 1_800_000_000)
    again = make_authority(tmp_path, "default", ["localhost"], 1_800_000_000)
    assert certificate_digest(first.certificate) == certificate_digest(again.certificate)
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in FILES} == FILES
    assert set(FILES) < set(KEYS), "a backup has them"
    with pytest.raises(ConfigError, match=r"authority .*: it belongs to fleet default, not other"):
        make_authority(tmp_path, "other", ["localhost"], 1_800_000_000)
    (tmp_path / "ca.key").write_bytes((tmp_path / "aggregator.pem").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of ca\.pem; restore both"):
        read_authority(tmp_path)


def test_an_authority_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    first = make_authority(tmp_path, "default", ["localhost"], 1_800_000_000)
    key = (tmp_path / "ca.key").read_bytes()
    for name in ("ca.pem", "aggregator.pem", "operator.pem", "enrolment.pem"):
        (tmp_path / name).unlink()
    again = make_authority(tmp_path, "default", ["localhost"], 1_800_000_000)
    assert (tmp_path / "ca.key").read_bytes() == key
    assert again.key.public_key() == first.key.public_key()


def test_a_server_sends_its_authority_after_its_own_certificate(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "default", ["localhost"], 1_800_000_000)
    path, pem = tmp_path / "enrolment.pem", certificate_pem(authority.certificate)
    shown = x509.load_pem_x509_certificates(path.read_bytes())
    assert hosts_of(shown[0]) == ["localhost"]
    assert [certificate_pem(each) for each in shown[1:]] == [pem]
    path.write_text(path.read_text().replace(pem, ""))
    make_authority(tmp_path, "default", ["localhost"], 1_800_000_000)
    assert path.read_text().endswith(pem), "one without it is renewed"


def test_bans_and_devices_are_there_after_a_restart(bench: EnrolmentBench) -> None:
    bench.enrolled("pi-1", new_tls_key())
    ban(bench.store, "pi-2")
    with closing(open_enrolments(bench.folder)) as again, again.transaction() as within:
        assert [device.device_id for device in within.rows(DeviceRow)] == ["pi-1"]
        assert [(row.device_id, row.lifted) for row in within.rows(BanRow)] == [("pi-2", False)]


def test_the_deployed_broker_is_configured_as_init_does_it() -> None:
    deployed = (Path(__file__).parents[2] / "deploy" / "mosquitto" / "mosquitto.conf").read_text()
    made = CONFIGURATION.format(
        certs="/etc/mosquitto/certs",
        data="/var/lib/mosquitto",
        acl="/etc/mosquitto/shoal.acl",
        port=8883,
    )
    assert deployed == made


def test_a_brokers_folder_that_was_cut_short_is_made_again_and_its_certificate_is_renewed(
    tmp_path: Path,
) -> None:
    now_s = 1_800_000_000.0
    authority, place = (
        make_authority(tmp_path, "default", ["localhost"], now_s),
        tmp_path / "broker",
    )
    make_broker_folder(authority, place, ["localhost", "10.0.0.1"], 8883, now_s)
    first = (place / "broker.pem").read_bytes()
    (place / "broker.key").unlink()
    make_broker_folder(authority, place, ["localhost", "10.0.0.1"], 8883, now_s)
    assert (place / "broker.pem").read_bytes() == first
    assert (
        read_tls_key((place / "broker.key").read_bytes()).public_key()
        == read_certificate(first.decode()).public_key()
    )
    assert renew_broker(authority, place, now_s + 400 * 86_400) is False
    assert renew_broker(authority, place, now_s + 500 * 86_400) is True
    renewed = (place / "broker.pem").read_text()
    assert hosts_of(read_certificate(renewed)) == ["localhost", "10.0.0.1"]
    assert (
        read_tls_key((place / "broker.key").read_bytes()).public_key()
        == read_certificate(renewed).public_key()
    )
    assert (place / "broker.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("host", ["", "a b", "x/y", "-", "a..b", "http://a"])
def test_a_host_that_is_none_makes_no_certificate(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="expected a name such as"):
        make_authority(tmp_path, "default", [host], 1_800_000_000)
    assert list(tmp_path.iterdir()) == []
