"""`shoal devices tag`, `untag`, `ban`, `unban` and `forget`: an operator's word on devices."""

import getpass
import os
import time
from contextlib import closing
from pathlib import Path

import msgspec
import typer

from aggregator.core.eligibility import read_rule
from aggregator.leadership.identity import is_served, lock_service
from aggregator.operator.desk import Desk, submit
from aggregator.operator.device_orders import (
    BanDevice,
    DeviceOrders,
    ForgetDevice,
    TagDevices,
    UnbanDevice,
    UntagDevices,
)
from aggregator.service.devices import Devices
from aggregator.storage.registry_table import RegistryTable
from shoal.handlers.devices import database_url, entries_of
from wire.errors import ConfigError


def tag(folder: Path, tags: str, ids: list[str] | None, where: str, database: str) -> None:
    """Carry out `shoal devices tag`."""
    _order(folder, database, TagDevices(_chosen(folder, database, ids, where), _split(tags)))


def untag(folder: Path, tags: str, ids: list[str] | None, where: str, database: str) -> None:
    """Carry out `shoal devices untag`."""
    _order(folder, database, UntagDevices(_chosen(folder, database, ids, where), _split(tags)))


def ban(folder: Path, device_id: str, reason: str, database: str) -> None:
    """Carry out `shoal devices ban`."""
    _order(folder, database, BanDevice(device_id, reason[:1000]))


def unban(folder: Path, device_id: str, database: str) -> None:
    """Carry out `shoal devices unban`."""
    _order(folder, database, UnbanDevice(device_id))


def forget(folder: Path, device_id: str, yes: bool, database: str) -> None:
    """Carry out `shoal devices forget`."""
    if not yes and not typer.confirm(f"Forget device {device_id}? It cannot be undone.", err=True):
        raise typer.Exit(1)
    _order(folder, database, ForgetDevice(device_id))


def _order(folder: Path, database: str, order: msgspec.Struct) -> None:
    """Have the folder's service carry out an order; or carry it out, where none runs.

    Raises:
        ConfigError: it was refused.
    """
    url = database_url(folder, database)
    if is_served(folder):
        print(submit(folder, order))
        return
    held = lock_service(folder)
    try:
        with closing(RegistryTable(url)) as store:
            registry = Devices(store, time.time)
            answer = Desk(folder, DeviceOrders(registry, folder, url).handlers).act(
                getpass.getuser(), order
            )
    finally:
        os.close(held)
    if not answer.done:
        raise ConfigError(answer.text)
    print(answer.text)


def _chosen(folder: Path, database: str, ids: list[str] | None, where: str) -> tuple[str, ...]:
    """
    Raises:
        ConfigError: neither ids nor a rule, both, or a rule that means no device.
    """
    if bool(ids) == bool(where):
        raise ConfigError("name devices either by their ids or with --where RULE")
    if ids:
        return tuple(ids)
    means = read_rule(where).means
    found = tuple(sorted(d for d, entry in entries_of(folder, database).items() if means(d, entry)))
    if not found:
        raise ConfigError(f"--where {where!r}: it means no device")
    return found


def _split(tags: str) -> tuple[str, ...]:
    """
    Raises:
        ConfigError: there are no tags.
    """
    found = tuple(tag.strip() for tag in tags.split(",") if tag.strip())
    if not found:
        raise ConfigError(f"--tags {tags!r}: there is none in it")
    return found
