"""A service's enrolment alone, over HTTPS, for tests."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aggregator.enrolment.api import create_enrolment_api
from aggregator.enrolment.attestation import PlayIntegrity
from aggregator.enrolment.authority import SERVER, Authority, make_authority
from aggregator.enrolment.desk import make_token
from aggregator.enrolment.office import FleetSettings, Office
from aggregator.http.server import HttpServer
from aggregator.storage.enrolment_store import EnrolmentStore, open_enrolments
from simulation.local.broker import free_port
from wire.identity.certificates import (
    TlsKey,
    certificate_digest,
    make_request,
    new_tls_key,
    sign_text,
)
from wire.identity.enrolment import Answer, Enrol, Enrolled, Renew, renewal_text
from wire.identity.keys import new_key, public_pem

TRUST = public_pem(new_key()).decode()
OFFER = FleetSettings("mqtts://broker.example", TRUST, "max_epochs = 5.0\n")


@dataclass
class Clock:
    """A clock that a test moves."""

    now_s: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now_s


@dataclass
class EnrolmentBench:
    """An authority, a database and an office in a folder; `url` where HTTPS answers."""

    folder: Path
    authority: Authority
    store: EnrolmentStore
    office: Office
    clock: Clock
    url: str = ""
    known: set[str] = field(default_factory=set)
    """The ids that the registry has."""

    def token(
        self,
        expires_in_s: float = 1000.0,
        device_id: str = "",
        approve: bool = False,
        tags: tuple[str, ...] = (),
    ) -> str:
        return str(
            make_token(
                self.store,
                certificate_digest(self.authority.certificate),
                expires_in_s,
                tags,
                device_id,
                approve,
            )
        )

    def enrol(
        self, token: str, key: TlsKey | None = None, name: str = "", attestation: str = ""
    ) -> Answer:
        return self.office.answer(
            Enrol(token, make_request(key or new_tls_key(), name), attestation), "test"
        )

    def enrolled(self, name: str, key: TlsKey) -> str:
        """The certificate of a device that enrols now."""
        answer = self.enrol(self.token(), key, name)
        assert isinstance(answer, Enrolled)
        return answer.certificate

    def renew(self, certificate: str, old: TlsKey, new: TlsKey, name: str) -> Answer:
        request = make_request(new, name)
        return self.office.answer(
            Renew(certificate, request, sign_text(old, renewal_text(request))), "test"
        )


@contextmanager
def enrolment_bench(
    folder: Path, serves: bool = False, days: float = 90.0, attester: PlayIntegrity | None = None
) -> Iterator[EnrolmentBench]:
    """A bench in this folder, new or as it was left."""
    folder.mkdir(exist_ok=True)
    authority, clock, port = (
        make_authority(folder, "default", ["localhost"], time.time()),
        Clock(),
        free_port(),
    )
    with closing(open_enrolments(folder)) as store:
        known: set[str] = set()
        office = Office(authority, store, OFFER, clock, days, known.__contains__, attester)
        bench = EnrolmentBench(folder, authority, store, office, clock, known=known)
        if not serves:
            yield bench
            return
        with HttpServer("127.0.0.1", port, folder / SERVER) as https:
            https.serve(create_enrolment_api(office))
            bench.url = f"https://localhost:{port}"
            yield bench
