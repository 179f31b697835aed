"""Errors that Shoal raises on purpose.

::

    ShoalError
    ├── DataError            windows, recordings or data sets that cannot be used
    ├── ConfigError          a setting or a command-line value that cannot be used
    ├── Stalled              no device can continue with a run
    ├── LinkError            the broker cannot be reached, or refuses the connection
    ├── OtherAggregator      another aggregator controls the fleet
    ├── SecondDevice         another device uses this one's identity
    └── WireError            something arrived that the protocol does not allow
        ├── UnknownTopic     a topic that topics.py does not build
        ├── Malformed        bytes that are no message: wrong JSON, wrong type, wrong value
        ├── LimitExceeded    larger than the limits allow; raised before memory is allocated
        ├── WrongLayout      tensors whose names, dtypes or shapes differ from the manifest
        ├── Untrusted        a message that no trusted key has vouched for
        └── BundleError
            ├── TamperedBundle   a file's hash, or the signature, does not match
            └── StaleBundle      an older version in place of a newer one

A command prints the message of a ShoalError and exits with its status, which is 2 by default. Any
other exception that escapes is a defect of Shoal.
"""

from typing import ClassVar


def printable(text: str) -> str:
    """Return text on one line that every encoding can write, with unprintable characters escaped.

    Such characters are line breaks, control characters and lone surrogates. So a text from another
    party can neither forge a line of a log nor make it unwritable.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose. Its text is `printable`."""

    exit_status: ClassVar[int] = 2
    """Exit status of a command that this error ends."""

    def __init__(self, text: str = "") -> None:
        super().__init__(printable(text))


class DataError(ShoalError):
    """Windows, recordings or data sets that cannot be used."""


class ConfigError(ShoalError):
    """Setting or command-line value that cannot be used."""


class Stalled(ShoalError):
    """Run that cannot continue: no device can carry out its plan, or no update can be used."""


class LinkError(ShoalError):
    """Broker that cannot be reached, or that refuses the connection."""


class OtherAggregator(ShoalError):
    """Fleet that another aggregator controls. No supervisor may restart this service."""

    exit_status = 3


class SecondDevice(ShoalError):
    """Identity that another device uses. No supervisor may restart this client."""

    exit_status = 3


class WireError(ShoalError):
    """Data that the protocol does not allow."""


class UnknownTopic(WireError):
    """Topic that this protocol version does not have."""


class Malformed(WireError):
    """Bytes that are not a message of this protocol."""


class LimitExceeded(WireError):
    """Data larger than the limits allow; raised before memory is allocated."""


class WrongLayout(WireError):
    """Tensors whose names, dtypes or shapes are not the expected ones."""


class Untrusted(WireError):
    """Message that no trusted key has vouched for."""


class BundleError(WireError):
    """Bundle that must not be loaded."""


class TamperedBundle(BundleError):
    """Bundle in which a file's hash, or the manifest's signature, does not match."""


class StaleBundle(BundleError):
    """Older bundle offered in place of a newer one."""
