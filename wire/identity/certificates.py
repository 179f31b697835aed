"""P-256 keys, requests and certificates of X.509, as enrolment has them (SPEC.md, 'Enrolment'). A
device's certificate has the device's id as its only name."""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wire.codec import digest
from wire.errors import Malformed

MOST_BYTES = 8 * 2**10
"""A request or certificate may have at most this many bytes."""

TlsKey = ec.EllipticCurvePrivateKey
TlsPublicKey = ec.EllipticCurvePublicKey
Certificate = x509.Certificate


def new_tls_key() -> TlsKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def read_tls_key(pem: bytes) -> TlsKey:
    """Read a P-256 key as `wire.identity.keys.private_pem` writes it; certificates beside it are
    passed over.

    Raises:
        Malformed: no P-256 key.
    """
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise Malformed(f"private key: not PEM: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Malformed(f"private key: {type(key).__name__}, expected P-256")
    return key


def key_digest(key: TlsPublicKey) -> str:
    """The SHA-256 of a public key (its SubjectPublicKeyInfo), as 64 hexadecimal digits."""
    return digest(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def certificate_digest(certificate: Certificate) -> str:
    """The SHA-256 of a certificate (its DER form), as 64 hexadecimal digits: its fingerprint."""
    return digest(certificate.public_bytes(serialization.Encoding.DER))


def certificate_pem(certificate: Certificate) -> str:
    """A certificate as PEM text."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def make_request(key: TlsKey, name: str) -> str:
    """A request for a certificate of this name, as PEM text; an empty name leaves it to the
    service."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else [])
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM).decode()


def read_request(pem: str) -> tuple[TlsPublicKey, str]:
    """The key of a request, which has signed it, and the name that it asks for; empty if it asks
    for none. Nothing else in it counts.

    Raises:
        Malformed: not such a request.
    """
    try:
        request = x509.load_pem_x509_csr(_bounded(pem))
        key, valid, name = (
            request.public_key(),
            request.is_signature_valid,
            common_name(request.subject),
        )
    except Malformed:
        raise
    except Exception as error:  # the parser's errors are of many kinds
        raise Malformed(f"certificate request: {type(error).__name__}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Malformed("certificate request: expected a P-256 key")
    if not valid:
        raise Malformed("certificate request: its own key has not signed it")
    return key, name


def read_certificate(pem: str) -> Certificate:
    """Read the first certificate of a text.

    Raises:
        Malformed: there is none.
    """
    try:
        return x509.load_pem_x509_certificate(_bounded(pem))
    except ValueError as error:
        raise Malformed(f"certificate: {error}") from None


def public_key_of(certificate: Certificate) -> TlsPublicKey:
    """A certificate's key.

    Raises:
        Malformed: it is no P-256 key.
    """
    try:
        key = certificate.public_key()
    except Exception as error:
        raise Malformed(f"certificate: its key cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Malformed("certificate: expected a P-256 key")
    return key


def common_name(name: x509.Name) -> str:
    """The one common name of a subject; empty if it has none.

    Raises:
        Malformed: it has several.
    """
    names = [
        str(attribute.value) for attribute in name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    ]
    if len(names) > 1:
        raise Malformed(f"{len(names)} common names, expected one")
    return names[0] if names else ""


def check_issued(certificate: Certificate, authority: Certificate) -> str:
    """The name of a client whose certificate this authority issued. Its dates are not looked at.

    Raises:
        Malformed: it is another one's, or not for a client.
    """
    try:
        certificate.verify_directly_issued_by(authority)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (InvalidSignature, ValueError, TypeError):
        raise Malformed("certificate: it is not of this authority") from None
    except x509.ExtensionNotFound:
        raise Malformed("certificate: it does not say what it is for") from None
    if list(usage) != [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]:
        raise Malformed("certificate: it is not for a client")
    return common_name(certificate.subject)


def check_time(certificate: Certificate, now_s: float) -> None:
    """
    Raises:
        Malformed: it is not valid now.
    """
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin.timestamp() <= now_s <= end.timestamp():
        now = datetime.fromtimestamp(now_s, UTC)
        raise Malformed(
            f"certificate: valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, and it is "
            f"{now:%Y-%m-%d %H:%M} UTC"
        )


def sign_text(key: TlsKey, text: bytes) -> str:
    """An ECDSA signature with SHA-256, in hexadecimal digits."""
    return key.sign(text, ec.ECDSA(hashes.SHA256())).hex()


def has_signed(key: TlsPublicKey, signature: str, text: bytes) -> bool:
    """Whether this key's owner signed the text."""
    try:
        key.verify(bytes.fromhex(signature), text, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _bounded(pem: str) -> bytes:
    if len(pem) > MOST_BYTES:
        raise Malformed(f"{len(pem)} characters, expected at most {MOST_BYTES}")
    return pem.encode()
