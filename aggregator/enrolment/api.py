"""HTTP routes of enrolment (SPEC.md, 'Enrolment'); anybody may call them.

The decisions are in `office.py`.
"""

import logging
import time
from collections.abc import Callable

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from aggregator.enrolment.office import Office
from aggregator.http.guard import Rates
from aggregator.ports import StorageFailed
from wire.codec import decode
from wire.errors import Malformed
from wire.identity.certificates import certificate_pem
from wire.identity.enrolment import (
    AUTHORITY,
    ENROL,
    RENEW,
    REQUEST_BYTES,
    Answer,
    Enrol,
    Reason,
    Refused,
    Renew,
    Waiting,
)

log = logging.getLogger("shoal.enrolment")

STATUS: dict[Reason, int] = {"malformed": 400, "too-many": 429, "busy": 503}
"""HTTP statuses of refusals; 403 for any other reason."""


def create_enrolment_api(office: Office, clock: Callable[[], float] = time.monotonic) -> FastAPI:
    """Return the web application of enrolment.

    `clock`: monotonic time (s).
    """
    api, rates = (
        FastAPI(title="Shoal enrolment", docs_url=None, redoc_url=None, openapi_url=None),
        Rates(clock),
    )
    log_rates = Rates(
        clock, burst=5, per_s=1 / 60, burst_all=60, per_s_all=1
    )  # of log lines: requests must not fill the disk

    @api.get(AUTHORITY)
    def authority(request: Request) -> Response:
        """Return the authority's certificate, which a device checks by its token's fingerprint."""
        if rates.wait_s(_peer(request)):
            return _response(Refused("too-many", "too many requests; ask again later"))
        pem = certificate_pem(office.authority.certificate)
        return Response(pem, media_type="application/x-pem-file")

    @api.post(ENROL)
    async def enrol(request: Request) -> Response:
        """Exchange a token for a certificate."""
        return await _answer(request, rates, log_rates, Enrol, office)

    @api.post(RENEW)
    async def renew(request: Request) -> Response:
        """Exchange a certificate for a new one."""
        return await _answer(request, rates, log_rates, Renew, office)

    return api


async def _answer(
    request: Request, rates: Rates, told: Rates, kind: type[Enrol] | type[Renew], office: Office
) -> Response:
    peer = _peer(request)

    def refuse(reason: Reason, why: str) -> Response:
        if not told.wait_s(peer):
            log.warning("Request refused: from=%s reason=%s: %s", peer, reason, why)
        return _response(Refused(reason, why))

    if rates.wait_s(peer):
        return refuse("too-many", "too many requests; ask again later")
    payload = b""
    try:
        async for part in request.stream():
            payload += part
            if len(payload) > REQUEST_BYTES:
                return refuse("malformed", f"request of more than {REQUEST_BYTES} bytes")
        return _response(await run_in_threadpool(office.answer, decode(payload, kind), peer))
    except ClientDisconnect:
        return refuse("malformed", f"the connection ended after {len(payload)} bytes")
    except Malformed as error:
        return refuse("malformed", str(error))
    except StorageFailed as error:
        log.error("Request not answered: from=%s: %s", peer, error)
    except Exception:  # a defect must cost only this request
        log.exception("Request not answered: from=%s", peer)
    return _response(Refused("busy", "the service cannot answer now; ask again later"))


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _response(answer: Answer) -> Response:
    match answer:
        case Refused(reason):
            status = STATUS.get(reason, 403)
        case Waiting():
            status = 202
        case _:
            status = 200
    headers = {"Retry-After": "5"} if status in (429, 503) else {}
    return Response(msgspec.json.encode(answer), status, headers, "application/json")
