"""The ASGI application: paths to operations, and every error to an answer. Knows no operation."""

import logging

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from relight.base.errors import RelightError
from relight.serve.exchange import ClientGone, Exchange, Receive, Scope, Send
from relight.serve.openapi import document
from relight.serve.routes import OPERATIONS, Answer
from relight.serve.schema import ErrorBody, ErrorDetail
from relight.serve.server import Server
from relight.serve.voice import OPENAI, Voice

log = logging.getLogger(__name__)


def create_app(server: Server) -> Starlette:
    """The application of one server. It starts and stops no engine."""
    routes = [
        Route(
            operation.path,
            _Endpoint(server, operation.answer, operation.voice),
            methods=[operation.method],
        )
        for operation in OPERATIONS
    ]
    openapi = document(OPERATIONS)

    async def schema(server: Server, exchange: Exchange) -> None:
        await exchange.reply(openapi)

    routes.append(Route("/openapi.json", _Endpoint(server, schema), methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})
    app.router.redirect_slashes = False
    return app


class _Endpoint:
    """One operation as an ASGI application. All that goes wrong in it becomes an answer here."""

    def __init__(self, server: Server, answer: Answer, voice: Voice = OPENAI) -> None:
        self._server = server
        self._answer = answer
        self._voice = voice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._voice)
        try:
            try:
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
            log.debug("%s %r: the client went away", scope["method"], scope["path"])


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
