"""Orders by command to a running service, from the owner of its folder.

The service writes its address, and a token for the owner only, into the folder.
"""

import http.client
import ipaddress
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from aggregator.leadership.identity import is_served
from aggregator.operator.desk import WAIT_S
from host.files import file_error, write_atomically
from wire.errors import ConfigError

FILE = "http-local.json"
NO_BODY: Mapping[str, Any] = {}
START_S = 30.0
"""Seconds for which a command waits for a service that starts."""


class Endpoint(msgspec.Struct, frozen=True):
    """Address and token with which a command on this machine reaches a running service."""

    host: str
    port: int
    token: str

    @classmethod
    def new(cls, host: str, port: int) -> "Endpoint":
        """Return the address of a service that listens on `host`, with a new token.

        `host`: an IP address; an unspecified one (all addresses) becomes the loopback address.
        """
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "::1" if address.version == 6 else "127.0.0.1"
        return cls(host, port, "shoal-" + secrets.token_urlsafe(32))


@contextmanager
def open_to_owner(folder: Path, local: Endpoint) -> Iterator[None]:
    """Let the owner of a service's folder give orders while the context is open.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        write_atomically(folder / FILE, msgspec.json.encode(local), 0o600)
    except OSError as error:
        raise ConfigError(file_error(folder / FILE, error)) from None
    try:
        yield
    finally:
        (folder / FILE).unlink(missing_ok=True)


def check_served(folder: Path) -> None:
    """Raise ConfigError unless a service runs in this folder."""
    if not folder.is_dir():
        raise ConfigError(f"No folder {folder}. `shoal serve --folder {folder}` makes it.")
    if not is_served(folder):
        raise ConfigError(
            f"No service runs in {folder}. Start it with `shoal serve --folder {folder}` and the "
            "options that it had, and then give the order again."
        )


def order(folder: Path, *path: str, **body: Any) -> str:
    """Give an order to the service of a folder, and return its outcome.

    `path`: the parts of the order's path, such as ``campaigns``, a name and ``pause``.

    Raises:
        ConfigError: no service runs in the folder, the service refuses the order, or the answer
        does not come in time.
    """
    until_s = time.monotonic() + START_S
    while True:
        check_served(folder)
        try:
            local = msgspec.json.decode((folder / FILE).read_bytes(), type=Endpoint)
            return _ask(local, "/" + "/".join(quote(part, safe="") for part in path), body)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until_s:
                raise ConfigError(
                    f"The service in {folder} has taken no orders for {START_S:.0f} s: it is "
                    "starting, or waits as a standby. Its log says more."
                ) from None
            time.sleep(0.05)
        except PermissionError:
            raise ConfigError(
                f"{folder / FILE}: only the owner of the folder may give orders by command. Others "
                "give them over HTTP, with a token of `shoal token new`."
            ) from None
        except (OSError, http.client.HTTPException, msgspec.MsgspecError, ValueError) as error:
            raise ConfigError(
                f"The service in {folder} gave no answer. Its audit.log says whether the order was "
                f"carried out: {error or type(error).__name__}"
            ) from None


def pauses(folder: Path) -> dict[str, str]:
    """Return why campaigns of the service that runs in a folder are paused, by campaign.

    Raises:
        ConfigError: the service gives no answer.
    """
    try:
        local = msgspec.json.decode((folder / FILE).read_bytes(), type=Endpoint)
        lines = _answer(local, "GET", "/campaigns?limit=1000")
        return {line["name"]: line["paused"] for line in lines if line["paused"]}
    except (OSError, http.client.HTTPException, msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"The service in {folder} gave no answer: {error or type(error).__name__}"
        ) from None


def _ask(local: Endpoint, path: str, body: Mapping[str, Any]) -> str:
    return str(_answer(local, "POST", path, body)["text"])


def _answer(local: Endpoint, method: str, path: str, body: Mapping[str, Any] = NO_BODY) -> Any:
    connection = http.client.HTTPConnection(local.host, local.port, timeout=2 * WAIT_S)
    try:
        connection.request(
            method,
            path,
            json.dumps(body) if body else None,
            {"Authorization": f"Bearer {local.token}", "Content-Type": "application/json"},
        )
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status != 200:
        raise ConfigError(answer.get("text") or answer.get("detail"))
    return answer
