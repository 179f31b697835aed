"""What a command says of input that it cannot use: the option, what came, what was expected."""

import re
from pathlib import Path

import pytest

from shoal.cli import application
from wire.errors import ShoalError

TEXT = Path(__file__)
"""A file that is none of those which commands read."""


def shoal(*arguments: str) -> None:
    """Run a command in this process."""
    application(arguments[0])(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("simulate --checkpoint /dev/null", "--checkpoint /dev/null: File exists; expected a folder, or a path where one can be made"),
        (
            f"export --out o --key {TEXT}",
            f"signing key {TEXT}: expected an Ed25519 private key in PEM, as `shoal export` writes it",
        ),
        (f"export inspect {TEXT}", f"{TEXT}: expected a bundle that `shoal export` wrote: bundle of "),
    ],
)
def test_what_cannot_be_used_is_named(arguments: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShoalError, match="^" + re.escape(error)):
        shoal(*arguments.split())
