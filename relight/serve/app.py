"""The ASGI application: paths to operations, and every error to an answer. Knows no operation."""

import logging
import time
from collections.abc import Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relight.base.errors import RelightError
from relight.serve import journal
from relight.serve.exchange import ClientGone, Exchange, Receive, Scope, Send
from relight.serve.openapi import document
from relight.serve.routes import OPERATIONS, Answer
from relight.serve.schema import ErrorBody, ErrorDetail
from relight.serve.server import Server
from relight.serve.voice import OPENAI, Voice

log = logging.getLogger(__name__)

OPEN = frozenset({"/health", "/ping", "/version", "/metrics", "/openapi.json"})
"""Routes that need no key and are not logged: probes ask them all the time."""


def create_app(server: Server) -> ASGIApp:
    """The application of one server. It starts and stops no engine."""
    routes = [
        Route(
            operation.path,
            _Endpoint(server, operation.answer, operation.voice, open=operation.path in OPEN),
            methods=[operation.method],
        )
        for operation in OPERATIONS
    ]
    openapi = document(OPERATIONS, server.options.root_path)

    async def schema(server: Server, exchange: Exchange) -> None:
        await exchange.reply(openapi)

    routes.append(Route("/openapi.json", _Endpoint(server, schema, open=True), methods=["GET"]))
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _no_such_route},
        middleware=_cross_origin(server.options.cors_origins),
    )
    app.router.redirect_slashes = False
    return _below(server.options.root_path, app) if server.options.root_path else app


def _cross_origin(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "x-relight-ignored", "retry-after"],
    )
    return [cors]


def _below(root: str, app: ASGIApp) -> ASGIApp:
    """`app` under a path, for proxies that pass the path on; without it it answers as well."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(root + "/"):
            scope["path"] = scope["path"].removeprefix(root)
        await app(scope, receive, send)

    return answer


class _Endpoint:
    """One operation as an ASGI application. All that goes wrong in it becomes an answer here."""

    def __init__(
        self, server: Server, answer: Answer, voice: Voice = OPENAI, *, open: bool
    ) -> None:
        """`open`: for everybody, and not worth a line of the log."""
        self._server = server
        self._answer = answer
        self._voice = voice
        self._open = open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        options = self._server.options
        exchange = Exchange(
            scope,
            receive,
            send,
            self._voice,
            silent_s=options.silent_s,
            keeps_text=options.log_requests == "text",
        )
        started_s = time.monotonic()
        try:
            try:
                if not self._open:
                    with self._server.counted():
                        options.keys.check(exchange.header)
                await self._answer(self._server, exchange)
            except RelightError as error:
                await exchange.fail(error)
            except ClientGone:
                raise
            except Exception:
                log.exception("%s %r failed", scope["method"], scope["path"])
                await exchange.fail(
                    RelightError("an internal error occurred; the server's log has the details")
                )
        except ClientGone:
            exchange.failure = exchange.failure or "client_gone"
        finally:
            if not self._open:
                journal.write(exchange, options.log_requests, time.monotonic() - started_s)


async def _no_such_route(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this class"
    message = f"{request.method} {request.url.path} does not exist here; see /openapi.json"
    detail = ErrorDetail(message, "invalid_request_error", None, "not_found")
    if error.status_code == 405:
        detail.code = "method_not_allowed"
    return Response(
        msgspec.json.encode(ErrorBody(detail)),
        status_code=error.status_code,
        headers=error.headers,
        media_type="application/json",
    )
