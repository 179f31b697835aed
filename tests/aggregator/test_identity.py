"""The right to speak for a fleet: keys, vouchers, the epoch of a start, rivals, and the folder's
lock."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aggregator.leadership.identity import (
    RENEW_S,
    VOUCHED_S,
    boot_ids,
    find_epoch,
    is_served,
    lock_service,
    own_secret,
    service_key,
    service_signer,
    steady_clock,
)
from aggregator.leadership.rivals import WrongFleet
from wire.errors import ConfigError, Malformed, OtherAggregator, ShoalError, Untrusted
from wire.identity.keys import PrivateKey, key_name, new_key, read_public
from wire.identity.signed import Signer, Verifier, vouch
from wire.links.in_process import InProcessBroker, InProcessLink
from wire.links.port import Denied
from wire.messages import AggregatorStatus
from wire.topics import Topics

ROOT, TOPICS = new_key(), Topics("f")
TRUSTED = (ROOT.public_key(),)
NOW_S = 1_800_000_000.0


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


class TestSecrets:
    def test_secrets_are_made_once_and_only_their_owner_can_read_them(self, tmp_path: Path) -> None:
        secret, key = own_secret(tmp_path / "secret.key"), service_key(tmp_path)
        assert (len(secret), mode(tmp_path / "secret.key"), mode(tmp_path / "service.key")) == (
            32,
            0o600,
            0o600,
        )
        assert own_secret(tmp_path / "secret.key") == secret
        assert key_name(service_key(tmp_path).public_key()) == key_name(key.public_key())
        assert [key_name(k) for k in read_public((tmp_path / "service.pub").read_bytes())] == [
            key_name(key.public_key())
        ]

    @pytest.mark.parametrize("payload", [b"", b"x" * 31, b"x" * 33])
    def test_a_secret_of_another_length_is_refused_and_stays(
        self, tmp_path: Path, payload: bytes
    ) -> None:
        (tmp_path / "secret.key").write_bytes(payload)
        with pytest.raises(
            ConfigError,
            match=rf"secret\.key: {len(payload)} bytes, expected 32; restore it from a backup",
        ):
            own_secret(tmp_path / "secret.key")
        assert (tmp_path / "secret.key").read_bytes() == payload

    @pytest.mark.parametrize("name", ["service.key", "secret.key"])
    def test_what_cannot_be_read_is_named(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
            service_key(tmp_path) if name == "service.key" else own_secret(tmp_path / name)

    def test_a_service_key_that_is_none_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "service.key").write_bytes(b"nothing")
        with pytest.raises(
            ConfigError, match=r"service key .*service\.key: signing key: not a PEM private key"
        ):
            service_key(tmp_path)

    def test_a_public_half_of_another_key_is_replaced(self, tmp_path: Path) -> None:
        service_key(tmp_path)
        (tmp_path / "service.key").unlink()
        key = service_key(tmp_path)
        assert key_name(read_public((tmp_path / "service.pub").read_bytes())[0]) == key_name(
            key.public_key()
        )


class TestVoucher:
    def voucher(
        self,
        folder: Path,
        until_s: float,
        fleet: str = "f",
        root: PrivateKey = ROOT,
        key: PrivateKey | None = None,
    ) -> bytes:
        """Write a voucher for the service's own key, or for another."""
        text = vouch(root, fleet, (key or service_key(folder)).public_key(), until_s)
        (folder / "service.voucher").write_bytes(text)
        return text

    def signer(self, folder: Path, root: PrivateKey | None = None, now_s: float = NOW_S) -> Signer:
        return service_signer(folder, "f", TRUSTED, root, now_s)

    def test_without_a_voucher_and_without_the_root_key_nothing_is_signed(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(
            ConfigError,
            match=r"service\.voucher: missing; "
            r"`shoal vouch --service .* --fleet f --key SIGNING_KEY` makes one",
        ):
            self.signer(tmp_path)
        assert (tmp_path / "service.pub").exists(), "for whoever has the root key elsewhere"

    def test_with_the_root_key_it_is_made_for_a_year(self, tmp_path: Path) -> None:
        sign = self.signer(tmp_path, ROOT)
        verifier, status = Verifier("f", TRUSTED), AggregatorStatus(True, "boot", 1, NOW_S)
        assert verifier.open(sign(status), AggregatorStatus, NOW_S + VOUCHED_S - 1) == status
        with pytest.raises(Untrusted, match="ended 1 s ago"):
            verifier.open(sign(status), AggregatorStatus, NOW_S + VOUCHED_S + 1)

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"until_s": NOW_S - 10}, "it ended 10 s ago"),
            ({"fleet": "g"}, "it is for the fleet g, not f"),
            ({"key": new_key()}, "it is for another key"),
            ({"root": new_key()}, "not made with a trusted key"),
        ],
    )
    def test_a_wrong_voucher_is_refused_and_replaced_where_the_root_key_is(
        self, tmp_path: Path, changes: dict[str, Any], problem: str
    ) -> None:
        self.voucher(tmp_path, **{"until_s": NOW_S + VOUCHED_S, **changes})
        with pytest.raises(ConfigError, match=problem):
            self.signer(tmp_path)
        self.signer(tmp_path, ROOT)
        assert self.signer(tmp_path).voucher == (tmp_path / "service.voucher").read_bytes()

    @pytest.mark.parametrize("text", [b"x", b"\n", b"{}\nAAAA", b"\xff\n\xff"])
    def test_what_is_no_voucher_is_refused(self, tmp_path: Path, text: bytes) -> None:
        service_key(tmp_path)
        (tmp_path / "service.voucher").write_bytes(text)
        with pytest.raises(ConfigError, match=r"voucher .*service\.voucher: "):
            self.signer(tmp_path)

    def test_a_root_key_that_devices_do_not_trust_makes_none(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not made with a trusted key"):
            self.signer(tmp_path, new_key())

    def test_it_is_renewed_a_month_before_it_ends_and_not_sooner(self, tmp_path: Path) -> None:
        early = self.voucher(tmp_path, NOW_S + RENEW_S + 10)
        assert self.signer(tmp_path, ROOT).voucher == early
        renewed = self.signer(tmp_path, ROOT, NOW_S + 20).voucher
        assert Verifier("f", TRUSTED).voucher(renewed, NOW_S).not_after_s == NOW_S + 20 + VOUCHED_S

    def test_one_that_ends_soon_is_warned_of(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.voucher(tmp_path, NOW_S + 3 * 86_400)
        self.signer(tmp_path)
        assert "makes another: days=3 voucher=" in caplog.text


class TestEpoch:
    """With a lease of 1 s, and two seconds for a retained status to come."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aggregator.leadership.identity.LEASE_S", 1.0)

    @pytest.fixture
    def sign(self) -> Signer:
        key = new_key()
        return Signer(key, vouch(ROOT, "f", key.public_key(), time.time() + 1000))

    def find(
        self,
        broker: InProcessBroker,
        stored: int = 0,
        boots: tuple[str, ...] = ("own",),
        take_over: bool = False,
    ) -> int:
        return find_epoch(
            lambda: broker.connect("looker"),
            TOPICS,
            Verifier("f", TRUSTED),
            stored,
            boots,
            1000.5,
            take_over,
        )

    def publish(
        self,
        broker: InProcessBroker,
        sign: Callable[[Any], bytes],
        epoch: int,
        boot_id: str,
        online: bool = True,
    ) -> None:
        status = AggregatorStatus(online, boot_id, epoch, time.time(), "r")
        broker.publish(TOPICS.aggregator, sign(status), retain=True)

    def test_it_is_the_time_or_greater_than_what_is_stored(
        self, in_process_broker: InProcessBroker
    ) -> None:
        assert self.find(in_process_broker) == 1000
        assert self.find(in_process_broker, stored=5000) == 5001

    def test_it_is_greater_than_that_of_one_that_said_goodbye(
        self, in_process_broker: InProcessBroker, sign: Signer
    ) -> None:
        self.publish(in_process_broker, sign, 7000, "other", online=False)
        assert self.find(in_process_broker, stored=5000) == 7001

    def test_one_that_died_is_watched_for_a_lease_and_then_followed(
        self, in_process_broker: InProcessBroker, sign: Signer
    ) -> None:
        self.publish(in_process_broker, sign, 7000, "other")
        started_s = time.monotonic()
        assert self.find(in_process_broker) == 7001
        assert time.monotonic() - started_s >= 1.0

    @pytest.mark.parametrize("boot_id", ["own", "own.3"])
    def test_an_earlier_start_from_this_folder_is_not_watched(
        self,
        in_process_broker: InProcessBroker,
        sign: Signer,
        boot_id: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("aggregator.leadership.identity.LEASE_S", 3600.0)
        self.publish(in_process_broker, sign, 7000, boot_id)
        assert self.find(in_process_broker) == 7001

    def alive(self, broker: InProcessBroker, sign: Signer) -> threading.Timer:
        """Another aggregator, which says once more that it is there."""
        self.publish(broker, sign, 7000, "other")
        timer = threading.Timer(0.4, lambda: self.publish(broker, sign, 7000, "other"))
        timer.start()
        return timer

    def test_one_that_is_alive_has_the_fleet(
        self, in_process_broker: InProcessBroker, sign: Signer
    ) -> None:
        timer = self.alive(in_process_broker, sign)
        with pytest.raises(
            OtherAggregator,
            match=r"fleet f: another aggregator is at work \(epoch 7000, run r\); stop it, or .* "
            r"--take-over",
        ):
            self.find(in_process_broker)
        timer.join()

    def test_take_over_follows_it_at_once(
        self, in_process_broker: InProcessBroker, sign: Signer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aggregator.leadership.identity.LEASE_S", 3600.0)
        self.publish(in_process_broker, sign, 7000, "other")
        assert self.find(in_process_broker, take_over=True) == 7001

    def test_one_that_may_not_read_the_fleets_topic_ends(
        self, in_process_broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            InProcessLink, "receive", lambda *_, **__: Denied("subscribe", TOPICS.aggregator)
        )
        with pytest.raises(WrongFleet, match=r"--fleet f .*\(--cert\) that of f@aggregator"):
            self.find(in_process_broker)

    @pytest.mark.parametrize("payload", ["unsigned", "other root", "junk"])
    def test_what_nobody_vouched_for_is_not_believed(
        self, in_process_broker: InProcessBroker, payload: str
    ) -> None:
        other, key = new_key(), new_key()
        strange = Signer(key, vouch(other, "f", key.public_key(), time.time() + 1000))
        signs: dict[str, Callable[[Any], bytes]] = {
            "unsigned": lambda message: strange(message).split(b"\n")[0],
            "other root": strange,
            "junk": lambda _: b"\xff\n\n\n",
        }
        self.publish(in_process_broker, signs[payload], 7000, "other")
        assert self.find(in_process_broker) == 1000
        with pytest.raises((Untrusted, Malformed)):
            Verifier("f", TRUSTED).open(
                signs[payload](AggregatorStatus(True, "x", 1, 0.0)), AggregatorStatus, 0.0
            )


class TestClockAndFolder:
    def test_the_clock_never_goes_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ahead = time.time() + 1e6
        clock = steady_clock(ahead)
        first = clock()
        assert ahead <= first < ahead + 10
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert clock() >= first
        assert steady_clock(5.0)() >= 5.0

    def test_the_clock_is_the_systems_where_that_is_later(self) -> None:
        assert abs(steady_clock(5.0)() - time.time()) < 5

    def test_a_folder_is_one_process_s(self, tmp_path: Path) -> None:
        import os

        folder = tmp_path / "a" / "b"
        assert not is_served(folder)
        held = lock_service(folder)
        assert is_served(folder)
        with pytest.raises(ConfigError, match="another `shoal serve` uses it"):
            lock_service(folder)
        os.close(held)
        assert not is_served(folder)
        os.close(lock_service(folder))

    def test_a_file_in_place_of_the_folder_is_one_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text("x")
        with pytest.raises(ConfigError, match=r"folder .*README\.md: File exists"):
            lock_service(tmp_path / "README.md")
        with pytest.raises(ConfigError, match=r"folder .*README\.md: Not a directory"):
            is_served(tmp_path / "README.md")

    def test_the_last_starts_are_remembered(self, tmp_path: Path) -> None:
        path = tmp_path / "boots"
        assert [boot_ids(path, str(n)) for n in range(3)] == [[], ["0"], ["0", "1"]]
        for number in range(3, 20):
            boot_ids(path, str(number))
        assert boot_ids(path, "last") == [str(number) for number in range(12, 20)]
        copy = tmp_path / "copy"
        copy.mkdir()
        shutil.copy(path, copy)
        assert boot_ids(copy / "boots", "x") == [], "those of the other folder may be alive"
        assert boot_ids(copy / "boots", "y") == ["x"]
        path.write_bytes(b"\xff")
        with pytest.raises(ShoalError, match="boots"):
            boot_ids(path, "x")
