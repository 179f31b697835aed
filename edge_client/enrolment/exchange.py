"""HTTPS requests of a device to the enrolment service.

The token's fingerprint verifies the authority's certificate, and that verifies the service. The
device sends nothing before that.
"""

import http.client
import socket
import ssl
import time
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec

from wire.codec import decode
from wire.errors import ConfigError, LinkError, Malformed, WireError
from wire.identity.certificates import certificate_digest, certificate_pem, read_certificate
from wire.identity.enrolment import AUTHORITY, REQUEST_BYTES, Answer, Enrol, Renew

TIMEOUT_S = 20.0
_OTHER_TIME, _OTHER_NAME = (9, 10), (62, 64)
"""OpenSSL's verify codes: certificate not valid now, certificate for another name or address."""


def read_url(url: str) -> tuple[str, int]:
    """Return host and port of ``https://HOST[:PORT]``. The default port is 8443.

    Raises:
        ConfigError: the address has another form.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"address {url!r}: {error}") from None
    if (
        parts.scheme != "https"
        or not host
        or parts.path not in ("", "/")
        or parts.query
        or parts.username
    ):
        raise ConfigError(f"address must be https://HOST[:PORT], got {url!r}")
    return host, port or 8443


def fetch_authority(url: str, fingerprint: str) -> str:
    """Return the certificate (PEM) of the service's authority, checked against the fingerprint.

    Raises:
        LinkError: the service cannot be reached or is too busy.
        ConfigError: the answer is not a certificate, or has another fingerprint.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # the certificate is public, and the fingerprint alone decides
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    status, payload = _request(url, context, "GET", AUTHORITY, b"")
    if status in (429, 503):
        raise LinkError(f"{url} is too busy now (status {status}); try again later")
    try:
        certificate = read_certificate(payload.decode())
        authority_fingerprint = certificate_digest(certificate)
    except (Malformed, UnicodeDecodeError):
        raise ConfigError(
            f"{url} answers without a certificate (status {status}); is it the address for "
            "enrolment?"
        ) from None
    if authority_fingerprint != fingerprint:
        causes = (
            "it is another service, its authority is a new one, or somebody intercepts the "
            "connection"
        )
        raise ConfigError(
            f"{url}: its authority must have the token's fingerprint {fingerprint[:16]}, got "
            f"{authority_fingerprint[:16]}; {causes}"
        )
    return certificate_pem(certificate)


def ask(url: str, authority: str, path: str, message: Enrol | Renew) -> Answer:
    """Post a message to the service and return its answer.

    `authority` is the authority's certificate (PEM). The service's own certificate must be issued
    by it.

    Raises:
        LinkError: the service cannot be reached, or its answer is not a known message.
        ConfigError: the service's certificate is not valid: another service answers, or this
            device's clock is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority)
    status, payload = _request(url, context, "POST", path, msgspec.json.encode(message))
    try:
        answer: Answer = decode(payload, Answer)
    except WireError as error:
        raise LinkError(f"{url}: unknown answer with status {status}: {error}") from None
    return answer


def _request(
    url: str, context: ssl.SSLContext, method: str, path: str, body: bytes
) -> tuple[int, bytes]:
    host, port = read_url(url)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        payload = answer.read(REQUEST_BYTES + 1)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"{url}: {_unverified(error, host)}") from None
    except ssl.SSLEOFError:
        raise LinkError(f"{url}: no connection: it was closed before TLS was agreed on") from None
    except ssl.SSLError:
        raise ConfigError(
            f"{url}: another program than the enrolment answers at port {port}; give the port of "
            "the enrolment, --enrol-port of `shoal serve` (8443 if it is not set)"
        ) from None
    except socket.gaierror as error:
        raise LinkError(
            f"{url}: {host} has no address ({error.strerror}); is there a network, and is the "
            "name right?"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise LinkError(f"{url}: no connection: {error or type(error).__name__}") from None
    finally:
        connection.close()
    return answer.status, payload


def _unverified(error: ssl.SSLCertVerificationError, host: str) -> str:
    if error.verify_code in _OTHER_TIME:
        now = datetime.fromtimestamp(time.time(), UTC)
        return (
            f"{error.verify_message}, by this device's clock, which says {now:%Y-%m-%d %H:%M} "
            "UTC; set it, for example by NTP"
        )
    if error.verify_code in _OTHER_NAME:
        return f"its certificate is not for {host}; use a name that `shoal init --tls` was given"
    return f"its certificate is not of the expected authority ({error.verify_message})"
