"""P-256 keys, requests and certificates of X.509 for enrolment (SPEC.md, 'Enrolment').

A device's certificate has the device's id as its only name.
"""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wire.codec import digest
from wire.errors import Malformed

MOST_BYTES = 8 * 2**10
"""Maximum number of bytes of a request or a certificate."""

TlsKey = ec.EllipticCurvePrivateKey
TlsPublicKey = ec.EllipticCurvePublicKey
Certificate = x509.Certificate


def new_tls_key() -> TlsKey:
    """Return a new P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def read_tls_key(pem: bytes) -> TlsKey:
    """Return the P-256 key of a PEM text from `wire.identity.keys.private_pem`.

    Certificates in the same text are ignored.

    Raises:
        Malformed: the text has no P-256 key.
    """
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise Malformed(f"private key: not PEM: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Malformed(f"private key: expected P-256, got {type(key).__name__}")
    return key


def write_public_key(key: TlsPublicKey) -> bytes:
    """Return a public key as SubjectPublicKeyInfo (DER)."""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_public_key(der: bytes) -> TlsPublicKey:
    """Return the key of `write_public_key`.

    Raises:
        Malformed: not a P-256 key.
    """
    try:
        key = serialization.load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Malformed(f"public key of {len(der)} bytes: not DER") from None
    return _checked(key)


def read_public_pem(pem: bytes) -> TlsPublicKey:
    """Return the key of `public_key_pem`.

    Raises:
        Malformed: not a P-256 key.
    """
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Malformed("public key: not PEM") from None
    return _checked(key)


def _checked(key: object) -> TlsPublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Malformed(f"public key: expected P-256, got {type(key).__name__}")
    return key


def public_key_pem(key: TlsPublicKey) -> bytes:
    """Return a public key as PEM text."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def key_digest(key: TlsPublicKey) -> str:
    """Return the SHA-256 of a public key (SubjectPublicKeyInfo), as 64 hexadecimal digits."""
    return digest(write_public_key(key))


def certificate_digest(certificate: Certificate) -> str:
    """Return a certificate's fingerprint: SHA-256 of its DER form, as 64 hexadecimal digits."""
    return digest(certificate.public_bytes(serialization.Encoding.DER))


def certificate_pem(certificate: Certificate) -> str:
    """Return a certificate as PEM text."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def make_request(key: TlsKey, name: str) -> str:
    """Return a request for a certificate of this name, as PEM text.

    With an empty name, the service chooses one.
    """
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else [])
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM).decode()


def read_request(pem: str) -> tuple[TlsPublicKey, str]:
    """Return the key of a request and the common name in it, empty if there is none.

    The key must have signed the request. Other contents are ignored.

    Raises:
        Malformed: the text is not a certificate request that its key has signed.
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
    except Exception as error:  # the parser raises many types of errors
        raise Malformed(
            f"certificate request: not readable: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Malformed("certificate request: expected a P-256 key")
    if not valid:
        raise Malformed("certificate request: not signed by its own key")
    return key, name


def read_certificate(pem: str) -> Certificate:
    """Return the first certificate in a text.

    Raises:
        Malformed: there is none.
    """
    try:
        return x509.load_pem_x509_certificate(_bounded(pem))
    except ValueError as error:
        raise Malformed(f"certificate: not readable: {error}") from None


def public_key_of(certificate: Certificate) -> TlsPublicKey:
    """Return the key of a certificate.

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
    """Return the only common name of a subject; empty if it has none.

    Raises:
        Malformed: it has several.
    """
    names = [
        str(attribute.value) for attribute in name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    ]
    if len(names) > 1:
        raise Malformed(f"certificate: {len(names)} common names; at most one is accepted")
    return names[0] if names else ""


def check_issued(certificate: Certificate, authority: Certificate) -> str:
    """Return the client's name in a certificate that this authority issued.

    The dates are not checked.

    Raises:
        Malformed: another authority issued it, or it is not for a client.
    """
    try:
        certificate.verify_directly_issued_by(authority)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (InvalidSignature, ValueError, TypeError):
        raise Malformed("certificate: not issued by this authority") from None
    except x509.ExtensionNotFound:
        raise Malformed("certificate: it states no purpose; expected a client's") from None
    if list(usage) != [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]:
        raise Malformed("certificate: it is for another purpose; expected a client's")
    return common_name(certificate.subject)


def check_time(certificate: Certificate, now_s: float) -> None:
    """Raise Malformed if a certificate is not valid now.

    Raises:
        Malformed: the certificate is not valid now.
    """
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin.timestamp() <= now_s <= end.timestamp():
        now = datetime.fromtimestamp(now_s, UTC)
        raise Malformed(
            f"certificate: valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}; this "
            f"machine's time is {now:%Y-%m-%d %H:%M} UTC"
        )


def sign_text(key: TlsKey, text: bytes) -> str:
    """Return the ECDSA signature of a text with SHA-256, in hexadecimal digits."""
    return key.sign(text, ec.ECDSA(hashes.SHA256())).hex()


def has_signed(key: TlsPublicKey, signature: str, text: bytes) -> bool:
    """Return True if the signature of the text was made with this key."""
    try:
        key.verify(bytes.fromhex(signature), text, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _bounded(pem: str) -> bytes:
    if len(pem) > MOST_BYTES:
        raise Malformed(f"certificate of {len(pem)} characters: at most {MOST_BYTES} are accepted")
    return pem.encode()
