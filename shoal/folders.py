"""The folders that commands write to."""

from pathlib import Path

from wire.errors import ConfigError


def prepare_folder(out: Path, option: str = "--out") -> Path:
    """Make the output folder, which this option names.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} {out}: {error.strerror}") from None
    return out
