"""`shoal-edge enrol`: exchanges a token for the files that `shoal-edge run` needs.

It may be interrupted at any moment and repeated with the same token.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from edge_client.enrolment.credentials import Credentials
from edge_client.enrolment.enrolled import FOLDER, read_enrolment
from edge_client.enrolment.exchange import ask, fetch_authority, read_url
from edge_client.enrolment.unit import check_install, install
from edge_client.storage.owner import read_policy
from wire.errors import ConfigError, LinkError
from wire.identity.certificates import make_request
from wire.identity.enrolment import ENROL, Enrol, Enrolled, Reason, Refused, Waiting, read_token
from wire.topics import check_name

WHAT_TO_DO: dict[Reason, str] = {
    "token": "is it complete, and of this service?",
    "used": "each device needs a token of its own",
    "expired": "ask for another",
    "other-name": "leave --device out, or ask for another token",
    "banned": "ask whoever runs the service",
    "rejected": "ask whoever runs the service",
}
T = TypeVar("T")

PAUSES_S = (2.0, 5.0, 10.0, 30.0)


def enrol(arguments: argparse.Namespace) -> None:
    """Enrol this device and print the folder of its credentials.

    Raises:
        ShoalError: the token or another argument cannot be used, the service refuses or cannot be
            reached, or a file cannot be written.
    """
    token, wanted, url = read_token(_token(arguments.token)), arguments.device or "", arguments.url
    read_url(url)
    if wanted:
        check_name(wanted, "device id")
    if arguments.install:  # a token is spent only where the rest can follow
        check_install(arguments.state, arguments.enrolled)
    credentials = Credentials(arguments.enrolled or arguments.state / FOLDER)
    if credentials.exists and not arguments.again:
        enrolment, end = (
            read_enrolment(credentials.folder),
            credentials.pair()[1].not_valid_after_utc,
        )
        if end > datetime.now(UTC):
            with suppress(OSError):
                credentials.tidy()
            print(
                f"{enrolment.device_id} is enrolled already, until {end:%Y-%m-%d}: "
                f"{credentials.folder}; --again enrols it anew"
            )
            _install(arguments)
            return
    authority = _patiently(arguments, lambda: fetch_authority(url, token.authority))
    key = credentials.next_key()
    answer = _patiently(
        arguments, lambda: ask(url, authority, ENROL, Enrol(str(token), make_request(key, wanted)))
    )
    while isinstance(answer, Waiting):
        print(
            f"{answer.device_id} waits for approval: `shoal enrol approve FOLDER "
            f"{answer.device_id}`",
            flush=True,
        )
        time.sleep(min(max(answer.retry_s, 1.0), 600.0))
        answer = _patiently(
            arguments,
            lambda: ask(url, authority, ENROL, Enrol(str(token), make_request(key, wanted))),
        )
    if isinstance(answer, Refused):
        advice = f" ({WHAT_TO_DO[answer.reason]})" if answer.reason in WHAT_TO_DO else ""
        raise ConfigError(f"{url} refused the enrolment: {answer.detail or answer.reason}{advice}")
    if not isinstance(answer, Enrolled):
        raise ConfigError(f"{url} must answer Enrolled, got {type(answer).__name__}")
    enrolment = credentials.take(key, answer, url, authority, wanted, time.time())
    if (policy := credentials.folder / "policy.toml").exists():
        read_policy(policy)
    print(
        f"{enrolment.device_id} is enrolled in the fleet {enrolment.fleet}, broker "
        f"{enrolment.broker}: {credentials.folder}"
    )
    _install(arguments)


def _token(text: str) -> str:
    """Return the token: the argument itself, or for ``@FILE`` the content of the file.

    A token in a file does not show in a list of processes.
    """
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token {text}: the file cannot be read: {error}") from None


def _patiently(arguments: argparse.Namespace, attempt: Callable[[], T]) -> T:
    """Retry for `--wait` seconds while the network is down or the service is too busy.

    Raises:
        LinkError: the last attempt failed.
    """
    end_s, pauses = (
        time.monotonic() + arguments.wait,
        itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])),
    )
    while True:
        try:
            answer = attempt()
            if not (isinstance(answer, Refused) and answer.reason in ("too-many", "busy")):
                return answer
            problem = LinkError(f"{arguments.url}: {answer.detail}")
        except LinkError as error:
            problem = error
        pause_s = next(pauses)
        if time.monotonic() + pause_s > end_s:
            raise problem
        time.sleep(pause_s)


def _install(arguments: argparse.Namespace) -> None:
    if arguments.install:
        install(arguments.state, arguments.enrolled, arguments.data)
