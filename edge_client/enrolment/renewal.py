"""Renews a device's certificate well before it expires, in a thread beside the client."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edge_client.enrolment.credentials import Credentials, check_pair
from edge_client.enrolment.enrolled import read_enrolment
from edge_client.enrolment.exchange import ask
from host.files import file_error
from wire.errors import ConfigError, LinkError, ShoalError
from wire.identity.certificates import certificate_pem, make_request, sign_text
from wire.identity.enrolment import RENEW, RENEW_AFTER, Refused, Renew, Renewed, renewal_text

log = logging.getLogger("shoal.edge")

LOOK_S = 600.0
"""Seconds between two checks of the certificate."""
AGAIN_S = (60.0, 300.0, 1800.0, 3600.0)
"""Seconds before a failed attempt is repeated, by number of failures."""


class Renewal:
    """Periodic check of the certificate, with a renewal when it is due."""

    def __init__(
        self,
        credentials: Credentials,
        renewed: Callable[[], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create the renewal. `renewed` is called after a new certificate is in the folder."""
        self._credentials, self._renewed, self._wall = credentials, renewed, wall
        # spreads the renewals of devices that were enrolled at the same time
        self._share = RENEW_AFTER - random.uniform(0.0, 0.1)
        self._over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the renewal in its own thread while the context is open."""
        thread = threading.Thread(target=self._keep, name="renewal", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(timeout=2.0)

    def _keep(self) -> None:
        failures = 0
        while True:
            pause_s = LOOK_S
            try:
                if self.is_due():
                    self.renew()
                    self._renewed()
                failures = 0
            except Exception as error:  # the device can work until the certificate expires
                text = (
                    error if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
                )
                log.error("Certificate not renewed, trying again: %s", text)
                pause_s = AGAIN_S[min(failures, len(AGAIN_S) - 1)] * random.uniform(0.8, 1.2)
                failures += 1
            if self._over.wait(pause_s):
                return

    def is_due(self) -> bool:
        """Return True if the certificate must be renewed now.

        Raises:
            ConfigError: the certificate cannot be read.
        """
        certificate = self._credentials.pair()[1]
        begin_s, end_s = (
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
        )
        return self._wall() > begin_s + self._share * (end_s - begin_s)

    def renew(self) -> None:
        """Request a certificate for a new key and take both into use.

        An interrupted attempt is continued: the key of the request is stored until its certificate
        has arrived.

        Raises:
            LinkError: the service cannot be reached or is too busy.
            ConfigError: the service refuses, or a file cannot be read or written.
        """
        enrolment, (key, certificate) = (
            read_enrolment(self._credentials.folder),
            self._credentials.pair(),
        )
        authority = self._credentials.authority()
        new = self._credentials.next_key()
        request = make_request(new, enrolment.device_id)
        message = Renew(
            certificate_pem(certificate), request, sign_text(key, renewal_text(request))
        )
        answer = ask(enrolment.service, certificate_pem(authority), RENEW, message)
        if isinstance(answer, Refused):
            problem = f"{enrolment.service} refused the renewal: {answer.reason}: {answer.detail}"
            raise (
                LinkError(problem)
                if answer.reason in ("too-many", "busy")
                else ConfigError(problem)
            )
        if not isinstance(answer, Renewed):
            raise ConfigError(
                f"{enrolment.service} must answer Renewed, got {type(answer).__name__}"
            )
        try:
            fresh = check_pair(
                new, answer.certificate, authority, enrolment.device_id, self._wall()
            )
            self._credentials.put_pair(new, fresh)
        except OSError as error:
            raise ConfigError(
                file_error(error.filename or self._credentials.folder, error)
            ) from None
        log.info(
            "Certificate renewed: device=%s until=%s",
            enrolment.device_id,
            fresh.not_valid_after_utc.date(),
        )
