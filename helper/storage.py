"""A helper's folder: its key, and a ledger that never forgets.

Its files are ``helper.key``, which is secret, ``helper.pub``, the public key for the owners of
devices, and ``ledger``. The ledger has one line for each set that the helper has agreed to, after a
line that names the helper. A line begins with the SHA-256 of the line before and of its own text.
"""

import os
from collections.abc import Set
from pathlib import Path

import msgspec

from helper.core.ledger import Ledger
from host.files import file_error, make_folder, write_atomically
from wire.codec import digest, encode
from wire.errors import ConfigError, WireError
from wire.fields import Count, Digest, Name
from wire.identity.certificates import (
    key_digest,
    new_tls_key,
    read_tls_key,
)
from wire.identity.keys import private_pem
from wire.secret.named_keys import write_named_key

_DIGITS = 64


class HelperIdentity(msgspec.Struct, frozen=True):
    """First line of a ledger: the helper whose it is."""

    key: Digest
    fleet: Name
    name: Name


class _Agreed(msgspec.Struct, frozen=True):
    question: Digest
    set: Digest
    devices: tuple[Name, ...]
    min_sum: Count


def make_helper(folder: Path, fleet: str, name: str) -> HelperIdentity:
    """Make a helper's folder with a new key and an empty ledger.

    Raises:
        ConfigError: the folder has a key or a ledger already, or cannot be written.
    """
    for file in ("helper.key", "ledger"):
        if (folder / file).exists():
            raise ConfigError(
                f"--folder {folder}: it has a {file} already; a helper keeps its key and its "
                "ledger together for ever, so choose another folder"
            )
    key = new_tls_key()
    identity = HelperIdentity(key_digest(key.public_key()), fleet, name)
    text = encode(identity)
    try:
        make_folder(folder)
        write_atomically(folder / "helper.pub", write_named_key("helper", name, key.public_key()))
        write_atomically(folder / "helper.key", private_pem(key), 0o600)
        write_atomically(folder / "ledger", _line("", text)[1], 0o600)
    except OSError as error:
        raise ConfigError(file_error(f"--folder {folder}", error)) from None
    return identity


class HelperFolder:
    """Opened folder of a helper; `ledger` is what it has agreed to."""

    def __init__(self, folder: Path) -> None:
        """Read a helper's folder. A line that a crash has cut short was never answered, and goes.

        Raises:
            ConfigError: it is no helper's folder, or its ledger is damaged or of another key.
        """
        self._path, where = folder / "ledger", f"--folder {folder}"
        try:
            self.key = read_tls_key((folder / "helper.key").read_bytes())
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError as error:
            file = Path(error.filename).name
            hint = (
                "a helper that forgot what it opened protects nobody; make another one, with a "
                "new key, by `shoal-helper init`"
                if file == "ledger"
                else "`shoal-helper init` makes one"
            )
            raise ConfigError(f"{where}: there is no {file}; {hint}") from None
        except OSError as error:
            raise ConfigError(file_error(where, error)) from None
        except WireError as error:
            raise ConfigError(f"{where}: helper.key: {error}") from None
        lines.pop()  # what follows the last line feed
        self._last, self.ledger = "", Ledger()
        try:
            first, *others = [self._read(line) for line in lines]
            self.identity = msgspec.json.decode(first, type=HelperIdentity)
            for text in others:
                agreed = msgspec.json.decode(text, type=_Agreed)
                self.ledger = self.ledger.after(
                    agreed.question, agreed.set, agreed.devices, agreed.min_sum
                )
        except ValueError:
            raise ConfigError(
                f"{where}: the ledger is damaged; make another helper, with a new key, by "
                "`shoal-helper init`"
            ) from None
        if self.identity.key != key_digest(self.key.public_key()):
            raise ConfigError(f"{where}: the ledger is that of another key; they belong together")
        self._num_bytes = sum(len(line) + 1 for line in lines)

    def agree(self, question: str, set_name: str, devices: Set[str], min_sum: int) -> None:
        """Add a set of a question to the ledger; it is on the disk when this returns.

        Raises:
            OSError: it cannot be written. The helper must end: the ledger may have a part of it.
        """
        text = encode(_Agreed(question, set_name, tuple(sorted(devices)), min_sum))
        last, line = _line(self._last, text)
        with self._path.open("r+b") as file:
            file.truncate(self._num_bytes)
            file.seek(self._num_bytes)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._last, self._num_bytes = last, self._num_bytes + len(line)
        self.ledger = self.ledger.after(question, set_name, devices, min_sum)

    def _read(self, line: bytes) -> bytes:
        """Return the text of a line.

        Raises:
            ValueError: it does not follow the line before.
        """
        text = line[_DIGITS + 1 :]
        self._last, expected = _line(self._last, text)
        if line + b"\n" != expected:
            raise ValueError("a line does not follow the one before")
        return text


def _line(last: str, text: bytes) -> tuple[str, bytes]:
    """Return the digest of a line after the line with the digest `last`, and the line."""
    name = digest(last.encode() + text)
    return name, name.encode() + b" " + text + b"\n"
