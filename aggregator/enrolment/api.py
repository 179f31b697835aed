"""Enrolment over HTTPS: the three paths of SPEC.md, 'Enrolment'. Whoever reaches the port may ask; the answers are the office's."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from aggregator.core.ports import StorageFailed
from aggregator.enrolment.office import Office
from aggregator.rates import Rates
from wire.enrolment import AUTHORITY, ENROL, RENEW, REQUEST_BYTES, Answer, Enrol, Reason, Refused, Renew, Waiting, read_said
from wire.errors import Malformed

T = TypeVar("T")

log = logging.getLogger("shoal.enrolment")

STATUS: dict[Reason, int] = {"malformed": 400, "too-many": 429, "busy": 503}
"""The HTTP status of a refusal; 403 for any other reason."""


def create_enrolment_api(office: Office, clock: Callable[[], float] = time.monotonic) -> FastAPI:
    """The application. `clock`: seconds, from a clock that cannot be set."""
    api, rates = FastAPI(title="Shoal enrolment", docs_url=None, redoc_url=None, openapi_url=None), Rates(clock)

    @api.get(AUTHORITY)
    def authority(request: Request) -> Response:
        """The authority's certificate, which a token's fingerprint tells from another."""
        if not rates.permits(_peer(request)):
            return _response(Refused("too-many", "too many requests; ask again later"))
        return Response(office.authority, media_type="application/x-pem-file")

    @api.post(ENROL)
    async def enrol(request: Request) -> Response:
        """A certificate for a token."""
        return await _answer(request, rates, Enrol, office.enrol)

    @api.post(RENEW)
    async def renew(request: Request) -> Response:
        """A certificate for an older one."""
        return await _answer(request, rates, Renew, office.renew)

    return api


async def _answer(request: Request, rates: Rates, kind: type[T], answer: Callable[[T, str], Answer]) -> Response:
    peer = _peer(request)
    if not rates.permits(peer):
        log.warning("too many requests from=%s", peer)
        return _response(Refused("too-many", "too many requests; ask again later"))
    payload = b""
    async for part in request.stream():
        payload += part
        if len(payload) > REQUEST_BYTES:
            log.warning("request refused from=%s: more than %d bytes", peer, REQUEST_BYTES)
            return _response(Refused("malformed", f"more than {REQUEST_BYTES} bytes"))
    try:
        return _response(await run_in_threadpool(answer, read_said(payload, kind), peer))
    except Malformed as error:
        log.warning("request refused from=%s: %s", peer, error)
        return _response(Refused("malformed", str(error)))
    except StorageFailed as error:
        log.error("request not answered from=%s: %s", peer, error)
    except Exception:  # nobody foresaw it, and it costs this request alone
        log.exception("request not answered from=%s", peer)
    return _response(Refused("busy", "the service cannot do it now; ask again later"))


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
