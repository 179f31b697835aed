"""`shoal devices tag`, `untag`, `ban`, `unban` and `forget`: an operator's orders on devices."""

from pathlib import Path

import typer

from aggregator.http.local import order
from wire.errors import ConfigError
from wire.topics import check_name


def tag(folder: Path, tags: str, ids: list[str] | None, where: str) -> None:
    """Carry out `shoal devices tag`."""
    print(order(folder, "devices", "tag", tags=_split(tags), device_ids=ids or [], where=where))


def untag(folder: Path, tags: str, ids: list[str] | None, where: str) -> None:
    """Carry out `shoal devices untag`."""
    print(order(folder, "devices", "untag", tags=_split(tags), device_ids=ids or [], where=where))


def ban(folder: Path, device_id: str, reason: str) -> None:
    """Carry out `shoal devices ban`."""
    print(order(folder, "devices", check_name(device_id, "device id"), "ban", reason=reason[:1000]))


def unban(folder: Path, device_id: str) -> None:
    """Carry out `shoal devices unban`."""
    print(order(folder, "devices", check_name(device_id, "device id"), "unban"))


def forget(folder: Path, device_id: str, yes: bool) -> None:
    """Carry out `shoal devices forget`."""
    if not yes and not typer.confirm(f"Forget device {device_id}? It cannot be undone.", err=True):
        raise typer.Exit(1)
    print(order(folder, "devices", check_name(device_id, "device id"), "forget"))


def _split(tags: str) -> list[str]:
    """
    Raises:
        ConfigError: there are no tags.
    """
    found = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not found:
        raise ConfigError(f"--tags {tags!r}: there is none in it")
    return found
