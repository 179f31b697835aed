"""Everything Shoal raises on purpose.

::

    ShoalError
    ├── DataError            windows, recordings or data sets that cannot be used
    ├── ConfigError          a setting or a command-line value that cannot be used
    ├── Stalled              no device can go on with a run
    ├── LinkError            the broker cannot be reached, or refuses the connection
    ├── OtherAggregator      the fleet is another aggregator's
    └── WireError            something arrived that the protocol does not allow
        ├── UnknownTopic     a topic that topics.py does not build
        ├── Malformed        bytes that are no message: wrong JSON, wrong type, wrong value
        ├── LimitExceeded    larger than the limits allow; raised before memory is taken
        ├── WrongLayout      tensors whose names, dtypes or shapes are not those of the manifest
        ├── Untrusted        a message that no trusted key has vouched for
        └── BundleError
            ├── TamperedBundle   a file's hash, or the signature, does not fit
            └── StaleBundle      an older version in place of a newer one

A command prints the message of a ShoalError and exits with its status, which is 2 if no other is
said. Anything else that escapes is a defect of Shoal.
"""

from typing import ClassVar


def printable(text: str) -> str:
    """Text on one line that every encoding can write: what is not printable (line breaks, control
    characters, lone surrogates) is escaped. What came from somebody else can so neither forge a
    line of a log nor make it unwritable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose. Its text is `printable`."""

    exit_status: ClassVar[int] = 2
    """With what a command ends that it ends."""

    def __init__(self, text: str = "") -> None:
        super().__init__(printable(text))


class DataError(ShoalError):
    """Windows, recordings or data sets that cannot be used."""


class ConfigError(ShoalError):
    """A setting or a command-line value that cannot be used."""


class Stalled(ShoalError):
    """A run that cannot go on: no device can carry out its plan, or no update is fit to be used."""


class LinkError(ShoalError):
    """The broker cannot be reached, or refuses the connection."""


class OtherAggregator(ShoalError):
    """The fleet is another aggregator's. Whatever restarts services must not restart this one."""

    exit_status = 3


class WireError(ShoalError):
    """Something arrived that the protocol does not allow."""


class UnknownTopic(WireError):
    """A topic that this protocol version does not have."""


class Malformed(WireError):
    """Bytes that are no message of this protocol."""


class LimitExceeded(WireError):
    """Larger than the limits allow; raised before memory for it is taken."""


class WrongLayout(WireError):
    """Tensors whose names, dtypes or shapes are not those expected."""


class Untrusted(WireError):
    """A message that no trusted key has vouched for."""


class BundleError(WireError):
    """A bundle that must not be loaded."""


class TamperedBundle(BundleError):
    """A file's hash, or the manifest's signature, does not fit."""


class StaleBundle(BundleError):
    """An older bundle offered in place of a newer one."""
