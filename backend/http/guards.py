"""What every route insists on: bodies of bounded size, no requests from other sites, errors in one form.

Knows HTTP only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException  # FastAPI's is a kind of it; malformed multipart raises this one
from starlette.types import Message

from backend.errors import H3Error, InvalidRequest, JobNotFound, MediaRefused, NotNow, PresetError, Problem, Unavailable
from backend.http.fields import shown

MAX_BODY_BYTES = 768 * 2**20  # 12 files at the limits of h3-facts 2, with room for data URLs
_RULES = {  # by the first word of FastAPI's kinds
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a number",
    "less": "is too large",
    "greater": "is too small",
}
OwnerOf = Callable[[Request], str | None]  # who sends a request; None when nobody that may


class BodyTooLarge(Exception):
    """The body went over the cap while it was read."""


class GuardedRoute(APIRoute):
    """A route that caps its body while reading it and answers our errors as `{"error": {...}}`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, wrapped."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                refuse_other_sites(request)
                refuse_large(request)
                return await inner(Request(request.scope, _capped(request.receive)))
            except BodyTooLarge:
                return error_response(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
            except HTTPException as error:
                return error_response(error.status_code, str(error.detail))
            except RequestValidationError as error:  # a value of the address; bodies are read by backend.http.forms
                invalid = _of_address(error)
                return error_response(400, str(invalid), _param(invalid))
            except H3Error as error:
                return error_response(status_of(error), str(error), _param(error))

        return handle


def _of_address(error: RequestValidationError) -> InvalidRequest:
    """What FastAPI finds wrong with values in the address, as one of our errors."""
    return InvalidRequest(
        tuple(
            Problem(
                field=str(told["loc"][-1]),
                value=shown(told["input"]),
                rule=_RULES.get(told["type"].split("_")[0], "cannot be used"),
            )
            for told in error.errors()
        )
    )


def refuse_other_sites(request: Request) -> None:
    """403 for a changing request that a browser sends on behalf of another site's page."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    origin = request.headers.get("origin")
    elsewhere = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if elsewhere or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise HTTPException(403, "this request comes from another site's page")


def refuse_large(request: Request) -> None:
    """Raise BodyTooLarge for a Content-Length over the cap, before a byte is read."""
    text = request.headers.get("content-length", "0")
    if not text.isdigit():
        raise HTTPException(400, "Content-Length is no number")
    if len(text) > 18 or int(text) > MAX_BODY_BYTES:
        raise BodyTooLarge


def _capped(receive: Callable[[], Awaitable[Message]]) -> Callable[[], Awaitable[Message]]:
    seen = 0

    async def capped() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:  # no Content-Length, or a false one
            raise BodyTooLarge
        return message

    return capped


def status_of(error: H3Error) -> int:
    """The HTTP status of an error."""
    if isinstance(error, JobNotFound):
        return 404
    if isinstance(error, NotNow):
        return 409
    if isinstance(error, InvalidRequest | MediaRefused | PresetError):
        return 400
    return 503 if isinstance(error, Unavailable) else 500


def error_response(status: int, message: str, param: str | None = None) -> JSONResponse:
    """An error in OpenAI's form."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    return JSONResponse(body, status_code=status)


def _param(error: H3Error) -> str | None:
    if isinstance(error, InvalidRequest) and error.problems:
        return error.problems[0].field
    return error.problem.field if isinstance(error, MediaRefused) else None
