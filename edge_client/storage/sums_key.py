"""Key with which a device signs its answers in secret sums; made at its first start.

It is apart from the key of its certificate, which a renewal replaces: helpers know the device by
this one. ``sums.pub`` is for the owner of the root key, who signs the roster of devices.
"""

from pathlib import Path

from host.files import file_error, make_folder, write_atomically
from wire.errors import ConfigError, Malformed
from wire.identity.certificates import TlsKey, new_tls_key, read_tls_key
from wire.identity.keys import private_pem
from wire.secret.named_keys import write_named_key

KEY, PUBLIC = "sums.key", "sums.pub"


def sums_key(folder: Path, device_id: str) -> TlsKey:
    """Return the key of the device in a state folder, and make it if there is none.

    Raises:
        ConfigError: a file cannot be read or written, or the key is damaged.
    """
    path = folder / KEY
    try:
        if path.exists():
            return read_tls_key(path.read_bytes())
        key = new_tls_key()
        make_folder(folder)
        write_atomically(folder / PUBLIC, write_named_key("device", device_id, key.public_key()))
        write_atomically(path, private_pem(key), 0o600)
    except OSError as error:
        raise ConfigError(file_error(f"state folder {folder}", error)) from None
    except Malformed as error:
        raise ConfigError(
            f"{path}: {error}; delete it, and have the new {PUBLIC} signed into the roster"
        ) from None
    return key
