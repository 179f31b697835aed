"""TLS settings of a client, from PEM files."""

import ssl
from pathlib import Path

from wire.errors import ConfigError


def client_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """What a connection is opened with: it trusts the authorities in `ca` (None: the system's), and
    shows a certificate if there is one. A key of its own is not needed where the certificate's file
    has it.

    Raises:
        ConfigError: a file cannot be read, or two do not fit together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_files(context, ca, certificate, key)
    return context


def load_files(
    context: ssl.SSLContext, ca: Path | None, certificate: Path | None, key: Path | None
) -> None:
    """Read the files again, for the connections that are opened from now on.

    Raises:
        ConfigError: as `client_context`.
    """
    try:
        if ca is not None:
            context.load_verify_locations(ca)
        else:
            context.load_default_certs()
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"TLS files {', '.join(str(file) for file in (ca, certificate, key) if file)}: {error}"
        ) from None
