"""The folder in which an enrolled device keeps what it was given: ``device.pem`` (its key and
certificate), ``ca.pem``, ``trust.pem``, ``policy.toml`` and ``enrolment.json``. ``device.pem`` is
written last: with it, all is there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_client.enrolment.enrolled import ENROLMENT, PAIR, Enrolment
from host.files import make_folder, write_atomically
from wire.errors import ConfigError, Malformed, ShoalError, WireError
from wire.identity.certificates import (
    Certificate,
    TlsKey,
    certificate_pem,
    check_issued,
    check_time,
    key_digest,
    new_tls_key,
    public_key_of,
    read_certificate,
    read_tls_key,
)
from wire.identity.enrolment import Enrolled
from wire.identity.keys import private_pem, read_public
from wire.links.mqtt import BrokerAddress
from wire.topics import check_name

NEXT_KEY = "next.key"
T = TypeVar("T")


@dataclass(frozen=True)
class Credentials:
    """The folder. What is in it is whole after every step, whatever interrupts the writing."""

    folder: Path

    @property
    def exists(self) -> bool:
        """Whether this device is enrolled."""
        return (self.folder / PAIR).exists()

    def pair(self) -> tuple[TlsKey, Certificate]:
        """The key and its certificate.

        Raises:
            ConfigError: they cannot be read.
        """
        return self._parsed(PAIR, lambda pem: (read_tls_key(pem), read_certificate(pem.decode())))

    def authority(self) -> Certificate:
        """The authority's certificate.

        Raises:
            ConfigError: it cannot be read.
        """
        return self._parsed("ca.pem", lambda pem: read_certificate(pem.decode()))

    def next_key(self) -> TlsKey:
        """The key of the request that is under way, which is made now if none is: the same after a
        restart.

        Raises:
            ConfigError: it cannot be read or written.
        """
        path = self.folder / NEXT_KEY
        try:
            make_folder(self.folder)
            self.folder.chmod(0o700)
            self.tidy()
            if not path.exists():
                write_atomically(path, private_pem(new_tls_key()), 0o600)
        except OSError as error:
            raise ConfigError(f"{error.filename or path}: {error.strerror}") from None
        return self._parsed(NEXT_KEY, read_tls_key)

    def tidy(self) -> None:
        """Remove the key of a request that is in use already: a kill may have left it.

        Raises:
            ConfigError: a file cannot be read.
            OSError: it cannot be removed.
        """
        path = self.folder / NEXT_KEY
        if (
            path.exists()
            and self.exists
            and key_digest(self._parsed(NEXT_KEY, read_tls_key).public_key())
            == key_digest(self.pair()[0].public_key())
        ):
            path.unlink()

    def take(
        self, key: TlsKey, given: Enrolled, service: str, authority: str, wanted: str, now_s: float
    ) -> Enrolment:
        """Check all that the service gave, and store it. `authority`: its certificate (PEM), by
        which the service was known.

        Raises:
            ConfigError: something is not what it should be; nothing is stored. Or it cannot be
            written.
        """
        try:
            device_id, fleet = (
                check_name(given.device_id, "device id"),
                check_name(given.fleet, "fleet name"),
            )
            certificate = check_pair(
                key, given.certificate, read_certificate(authority), device_id, now_s
            )
            if wanted not in ("", device_id):
                raise Malformed(f"the certificate is for {device_id}, and --device is {wanted}")
            if not read_public(given.trust.encode()) or not BrokerAddress.parse(given.broker).tls:
                raise Malformed(f"the broker is {given.broker}, expected mqtts://")
        except ShoalError as error:
            raise ConfigError(f"what {service} answered cannot be used: {error}") from None
        enrolment = Enrolment(device_id, fleet, given.broker, service)
        files = {
            "ca.pem": authority.encode(),
            "trust.pem": given.trust.encode(),
            ENROLMENT: msgspec.json.encode(enrolment),
        }
        if (
            given.policy and not (self.folder / "policy.toml").exists()
        ):  # what its owner has changed stays
            files["policy.toml"] = given.policy.encode()
        try:
            for name, payload in files.items():
                write_atomically(self.folder / name, payload)
            self.put_pair(key, certificate)
        except OSError as error:
            raise ConfigError(f"{error.filename or self.folder}: {error.strerror}") from None
        return enrolment

    def put_pair(self, key: TlsKey, certificate: Certificate) -> None:
        """Take a key and its certificate into use, together.

        Raises:
            OSError: they cannot be written; the ones before are still there.
        """
        write_atomically(
            self.folder / PAIR, private_pem(key) + certificate_pem(certificate).encode(), 0o600
        )
        (self.folder / NEXT_KEY).unlink(missing_ok=True)

    def _parsed(self, name: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse((self.folder / name).read_bytes())
        except OSError as error:
            raise ConfigError(f"{self.folder / name}: {error.strerror}") from None
        except (WireError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.folder / name}: {error}; remove the folder, and enrol again"
            ) from None


def check_pair(
    key: TlsKey, pem: str, authority: Certificate, device_id: str, now_s: float
) -> Certificate:
    """A certificate that was answered to a request.

    Raises:
        Malformed: it is for another key or device, of another authority, or not valid now.
    """
    certificate = read_certificate(pem)
    if key_digest(public_key_of(certificate)) != key_digest(key.public_key()):
        raise Malformed("the certificate is for another key")
    if (name := check_issued(certificate, authority)) != device_id:
        raise Malformed(f"the certificate is for {name}, not for {device_id}")
    check_time(certificate, now_s)
    return certificate
