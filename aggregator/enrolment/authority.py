"""Certificate authority of a fleet: its key and certificate, and the certificates that it issues.

The rules are in SPEC.md, 'Enrolment'. Who may have a certificate is in `office.py`.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from host.files import file_error, write_atomically
from wire.errors import ConfigError, WireError
from wire.identity.certificates import (
    Certificate,
    TlsKey,
    TlsPublicKey,
    certificate_pem,
    common_name,
    new_tls_key,
    read_certificate,
    read_tls_key,
)
from wire.identity.keys import private_pem
from wire.topics import check_name, client_name

KEY, CERTIFICATE = "ca.key", "ca.pem"
AGGREGATOR, OPERATOR, SERVER = "aggregator.pem", "operator.pem", "enrolment.pem"
"""Files with key and certificate: of the aggregator, the banning client and HTTPS enrolment."""
FILES = {KEY: 0o600, CERTIFICATE: 0o644, AGGREGATOR: 0o600, OPERATOR: 0o600, SERVER: 0o600}
"""Names of the authority's files in the service's folder, with their permissions."""
AUTHORITY_DAYS, OWN_DAYS, DEVICE_DAYS = 3650.0, 730.0, 90.0
_LABEL = re.compile("[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
SKEW = timedelta(minutes=10)
"""Time by which a certificate's validity begins before now: a device's clock may be behind."""


@dataclass(frozen=True)
class Authority:
    """Certificate authority of one fleet."""

    fleet: str
    key: TlsKey
    certificate: Certificate

    def issue(
        self,
        key: TlsPublicKey,
        name: str,
        now_s: float,
        days: float = DEVICE_DAYS,
        hosts: Sequence[str] = (),
    ) -> Certificate:
        """Return a certificate for a key and a common name.

        With `hosts` (names or addresses) it is a server's certificate. Without any, it is one with
        which a client connects to the broker. It is valid for `days` from now, but not longer than
        the authority's.

        Raises:
            ConfigError: a host is neither a name nor an address.
        """
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        key_id = self.certificate.extensions.get_extension_for_class(
            x509.SubjectKeyIdentifier
        ).value
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        latest = self.certificate.not_valid_after_utc
        builder = (
            _builder(subject, self.certificate.subject, key, now_s, days, latest)
            .add_extension(x509.ExtendedKeyUsage([usage]), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), False
            )
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False
            )
        return builder.sign(self.key, hashes.SHA256())


def make_authority(folder: Path, fleet: str, hosts: Sequence[str], now_s: float) -> Authority:
    """Make an authority in a service's folder, and the certificates that the service itself needs.

    `hosts` are the names of the service's machine. Existing files stay, so a call that was
    interrupted can be repeated.

    Raises:
        ConfigError: `fleet` or a host is not a valid name, another fleet's authority is there, or
        a file cannot be read or written.
    """
    check_name(fleet, "fleet name")
    for host in hosts:
        _general_name(host)
    try:
        authority = read_authority(folder)
        if authority is None:
            key = (
                read_tls_key((folder / KEY).read_bytes())
                if (folder / KEY).exists()
                else new_tls_key()
            )
            write_atomically(folder / KEY, private_pem(key), FILES[KEY])
            number = f"Shoal authority {x509.random_serial_number():040x}"[:48]
            subject = x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, fleet),
                    x509.NameAttribute(NameOID.COMMON_NAME, number),
                ]
            )
            end = datetime.fromtimestamp(now_s, UTC) + timedelta(days=AUTHORITY_DAYS)
            certificate_fields = (subject, subject, key.public_key(), now_s, AUTHORITY_DAYS, end)
            certificate = _builder(*certificate_fields).sign(key, hashes.SHA256())
            write_atomically(
                folder / CERTIFICATE, certificate_pem(certificate).encode(), FILES[CERTIFICATE]
            )
            authority = Authority(fleet, key, certificate)
        if authority.fleet != fleet:
            raise ConfigError(
                f"authority {folder / CERTIFICATE}: it belongs to fleet {authority.fleet}, not "
                f"{fleet}"
            )
        renew_own(authority, folder, now_s, hosts)
    except OSError as error:
        raise ConfigError(file_error(f"authority in {folder}", error)) from None
    except WireError as error:
        raise ConfigError(f"authority in {folder}: {error}") from None
    return authority


def read_authority(folder: Path) -> Authority | None:
    """Return the authority in a service's folder, or None if there is none.

    Raises:
        ConfigError: its files cannot be read, or do not fit together.
    """
    if not (folder / CERTIFICATE).exists():
        return None
    try:
        certificate, key = (
            read_certificate((folder / CERTIFICATE).read_text()),
            read_tls_key((folder / KEY).read_bytes()),
        )
    except OSError as error:
        raise ConfigError(
            f"authority {error.filename}: {error.strerror}; restore it from a backup"
        ) from None
    except (WireError, UnicodeDecodeError) as error:
        raise ConfigError(f"authority in {folder}: {error}; restore it from a backup") from None
    if certificate.public_key() != key.public_key():
        raise ConfigError(
            f"authority in {folder}: {KEY} is not the key of {CERTIFICATE}; restore both from a "
            "backup"
        )
    names = [
        str(attribute.value)
        for attribute in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    ]
    if len(names) != 1:
        raise ConfigError(
            f"authority {folder / CERTIFICATE}: it names no fleet; `shoal init --tls` makes one "
            "that does"
        )
    return Authority(names[0], key, certificate)


def renew_own(authority: Authority, folder: Path, now_s: float, hosts: Sequence[str] = ()) -> None:
    """Make the service's own certificates, or renew those that are due.

    A certificate is due if a third of its validity or less is left, if it is of another authority,
    or if its names differ from the wanted ones.

    Raises:
        OSError: a file cannot be read or written.
        Malformed: a file is not a key with its certificate.
    """
    for name, role in (
        (AGGREGATOR, client_name(authority.fleet, "aggregator")),
        (OPERATOR, client_name(authority.fleet, "operator")),
    ):
        if _is_due(authority, folder / name, now_s, role):
            key = new_tls_key()
            write_pair(folder / name, key, authority.issue(key.public_key(), role, now_s, OWN_DAYS))
    renew_server(authority, folder / SERVER, now_s, hosts)


def renew_server(authority: Authority, path: Path, now_s: float, hosts: Sequence[str] = ()) -> bool:
    """Make or renew a server's certificate where it is due, and return True if it was written.

    The file has the authority's certificate, too: a device knows it by its token's fingerprint.
    Without `hosts`, the certificate keeps its present names; nothing is made if there is none yet.

    Raises:
        OSError: the file cannot be read or written.
        Malformed: the file is not a key with its certificate.
    """
    names = list(hosts) or (hosts_of(read_certificate(path.read_text())) if path.exists() else [])
    is_due = bool(names) and (
        _is_due(authority, path, now_s)
        or hosts_of(read_certificate(path.read_text())) != names
        or certificate_pem(authority.certificate) not in path.read_text()
    )
    if is_due:
        key = new_tls_key()
        name = f"{authority.fleet}@{names[0]}"[:64]
        certificate = authority.issue(key.public_key(), name, now_s, OWN_DAYS, names)
        write_pair(path, key, certificate, authority.certificate)
    return is_due


def write_pair(path: Path, key: TlsKey, *chain: Certificate) -> None:
    """Write a key and its certificate into one file, so that both are old or both are new.

    `chain`: the key's certificate, and those after it that a server sends with it.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(path, private_pem(key) + "".join(map(certificate_pem, chain)).encode(), 0o600)


def hosts_of(certificate: Certificate) -> list[str]:
    """Return the names and addresses of a server's certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _is_due(authority: Authority, path: Path, now_s: float, role: str = "") -> bool:
    if not path.exists():
        return True
    certificate = read_certificate(path.read_text())
    begin, end = (
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )
    others = certificate.issuer != authority.certificate.subject or (
        bool(role) and common_name(certificate.subject) != role
    )
    return others or now_s > begin + (end - begin) * 2 / 3


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: TlsPublicKey,
    now_s: float,
    days: float,
    latest: datetime,
) -> x509.CertificateBuilder:
    """Return a builder with the fields that every certificate has.

    The certificate is an authority's, which signs certificates, if `subject` equals `issuer`.
    Otherwise its key signs connections.
    """
    now, is_ca = datetime.fromtimestamp(now_s, UTC), subject == issuer
    usage = x509.KeyUsage(not is_ca, False, False, False, False, is_ca, is_ca, False, False)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(min(now + timedelta(days=days), latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), True)
        .add_extension(usage, True)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ConfigError(f"host {host!r}: expected a name such as broker.example, or an address")
    return x509.DNSName(host)
