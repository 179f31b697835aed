"""File of a user with the helpers of secret mode."""

import logging
from pathlib import Path

from host.files import file_error
from wire.errors import ConfigError, WireError
from wire.secret.named_keys import NamedKey, read_helpers


def load_helpers(path: Path, log: logging.Logger) -> tuple[NamedKey, ...]:
    """Return the helpers of the file `--helpers`; a single one is warned of.

    Raises:
        ConfigError: the file cannot be used.
    """
    try:
        helpers = read_helpers(path.read_bytes())
    except OSError as error:
        raise ConfigError(file_error(f"--helpers {path}", error)) from None
    except WireError as error:
        raise ConfigError(f"--helpers {path}: {error}") from None
    if len(helpers) == 1:
        log.warning(
            "One helper protects from nobody who has both its key and the service's messages; "
            "use three, of other parties"
        )
    return helpers
