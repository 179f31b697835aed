"""Credentials folder of an enrolled device.

Its files are ``device.pem`` (key and certificate), ``ca.pem``, ``trust.pem``, ``policy.toml`` and
``enrolment.json``. ``device.pem`` is written last: the folder is complete if that is there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_client.enrolment.enrolled import ENROLMENT, PAIR, Enrolment
from host.files import file_error, make_folder, write_atomically
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
    """Credentials of a device. An interrupted write leaves every file in the folder whole."""

    folder: Path

    @property
    def exists(self) -> bool:
        """True if this device is enrolled."""
        return (self.folder / PAIR).exists()

    def pair(self) -> tuple[TlsKey, Certificate]:
        """Return the device's key and its certificate.

        Raises:
            ConfigError: they cannot be read.
        """
        return self._parsed(PAIR, lambda pem: (read_tls_key(pem), read_certificate(pem.decode())))

    def authority(self) -> Certificate:
        """Return the authority's certificate.

        Raises:
            ConfigError: it cannot be read.
        """
        return self._parsed("ca.pem", lambda pem: read_certificate(pem.decode()))

    def next_key(self) -> TlsKey:
        """Return the key of the open request; create it if no request is open.

        The key is stored, so a restart continues with the same one.

        Raises:
            ConfigError: the key cannot be read or written.
        """
        path = self.folder / NEXT_KEY
        try:
            make_folder(self.folder)
            self.folder.chmod(0o700)
            self.tidy()
            if not path.exists():
                write_atomically(path, private_pem(new_tls_key()), 0o600)
        except OSError as error:
            raise ConfigError(file_error(error.filename or path, error)) from None
        return self._parsed(NEXT_KEY, read_tls_key)

    def tidy(self) -> None:
        """Delete the key of the open request if it is in use already. A kill may have left it.

        Raises:
            ConfigError: a file cannot be read.
            OSError: the key cannot be deleted.
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
        self,
        key: TlsKey,
        enrolled: Enrolled,
        service: str,
        authority: str,
        wanted: str,
        now_s: float,
    ) -> Enrolment:
        """Check the service's answer, store it, and return what the device is enrolled as.

        A ``policy.toml`` that is there already stays.

        Args:
            key: private key of the request.
            given: the service's answer.
            service: address of the service.
            authority: certificate (PEM) of the authority by which the service was verified.
            wanted: device id that the owner asked for, or "".
            now_s: present time in Unix seconds.

        Raises:
            ConfigError: a part of the answer is not valid, and nothing is stored; or a file cannot
                be written.
        """
        try:
            device_id, fleet = (
                check_name(enrolled.device_id, "device id"),
                check_name(enrolled.fleet, "fleet name"),
            )
            certificate = check_pair(
                key, enrolled.certificate, read_certificate(authority), device_id, now_s
            )
            if wanted not in ("", device_id):
                raise Malformed(f"the certificate is for {device_id}, and --device is {wanted}")
            broker = BrokerAddress.parse(enrolled.broker)
            if not read_public(enrolled.trust.encode()) or not broker.tls:
                raise Malformed(f"the broker must be mqtts://HOST[:PORT], got {broker}")
        except ShoalError as error:
            raise ConfigError(f"the answer of {service} cannot be used: {error}") from None
        enrolment = Enrolment(device_id, fleet, enrolled.broker, service)
        files = {
            "ca.pem": authority.encode(),
            "trust.pem": enrolled.trust.encode(),
            ENROLMENT: msgspec.json.encode(enrolment),
        }
        # a policy that the owner has edited stays
        if enrolled.policy and not (self.folder / "policy.toml").exists():
            files["policy.toml"] = enrolled.policy.encode()
        try:
            for name, payload in files.items():
                write_atomically(self.folder / name, payload)
            self.put_pair(key, certificate)
        except OSError as error:
            raise ConfigError(file_error(error.filename or self.folder, error)) from None
        return enrolment

    def put_pair(self, key: TlsKey, certificate: Certificate) -> None:
        """Take a key and its certificate into use together.

        Raises:
            OSError: they cannot be written. The previous pair is still there.
        """
        write_atomically(
            self.folder / PAIR, private_pem(key) + certificate_pem(certificate).encode(), 0o600
        )
        (self.folder / NEXT_KEY).unlink(missing_ok=True)

    def _parsed(self, name: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse((self.folder / name).read_bytes())
        except OSError as error:
            raise ConfigError(file_error(self.folder / name, error)) from None
        except (WireError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.folder / name}: {error}; remove the folder, and enrol again"
            ) from None


def check_pair(
    key: TlsKey, pem: str, authority: Certificate, device_id: str, now_s: float
) -> Certificate:
    """Return the parsed certificate (PEM) of an answer after checking it.

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
