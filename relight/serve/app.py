"""The ASGI application: paths to operations, and every error to an answer. Knows no operation.

It is no framework's: between a token and the socket stands nothing that could be left out.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial

from starlette.middleware.cors import CORSMiddleware

from relight.base.errors import NotFound, RelightError, WrongMethod
from relight.serve import journal
from relight.serve.exchange import ClientGone, Exchange, Receive, Scope, Send
from relight.serve.openapi import document
from relight.serve.routes import OPERATIONS, Answer
from relight.serve.server import Server
from relight.serve.voice import OPENAI, Voice

log = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/", "/health", "/ping", "/version", "/metrics", "/openapi.json"})
"""Routes that need no key and are not logged: probes ask them all the time."""
NAME = "{name:path}"
"""The end of a path that stands for anything."""


def create_app(server: Server) -> App:
    """The application of one server. It starts and stops no engine."""
    written = cache(partial(document, OPERATIONS, server.options.root_path))

    async def schema(server: Server, exchange: Exchange) -> None:
        await exchange.reply(written())

    app = _App(server)
    app.add("GET", "/openapi.json", schema)
    for operation in OPERATIONS:
        app.add(operation.method, operation.path, operation.answer, operation.voice)
    return _cross_origin(app, server.options.cors_origins)


def _cross_origin(app: App, origins: Sequence[str]) -> App:
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "x-relight-ignored", "retry-after"],
    )


class _App:
    """All routes of a server, under its root path for proxies that pass that on, and without."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._root = server.options.root_path
        self._endpoints: dict[str, dict[str, _Endpoint]] = {}
        self._named: list[str] = []

    def add(self, method: str, path: str, answer: Answer, voice: Voice = OPENAI) -> None:
        endpoint = _Endpoint(self._server, answer, voice, open=path in OPEN)
        self._endpoints.setdefault(path, {})[method] = endpoint
        if method == "GET":
            self._endpoints[path]["HEAD"] = endpoint
        if path.endswith(NAME):
            self._named.append(path.removesuffix(NAME))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not spoken here")
        path: str = scope["path"]
        if self._root and path.startswith(self._root + "/"):
            path = scope["path"] = path.removeprefix(self._root)
        methods = self._endpoints.get(path)
        for start in self._named if methods is None else ():
            if path.startswith(start) and path != start:
                methods = self._endpoints[start + NAME]
                scope["path_params"] = {"name": path.removeprefix(start)}
        endpoint = methods.get(scope["method"]) if methods else None
        if endpoint is None:
            refusal = _refusal(methods or ())
            endpoint = _Endpoint(self._server, refusal, self._voice_of(path), open=True)
        await endpoint(scope, receive, send)

    def _voice_of(self, path: str) -> Voice:
        """That of the nearest route above, also for paths that are none."""
        while path and path not in self._endpoints:
            path = path.rpartition("/")[0]
        return next((one.voice for one in self._endpoints.get(path, {}).values()), OPENAI)


def _refusal(methods: Sequence[str] | dict[str, "_Endpoint"]) -> Answer:
    async def refuse(server: Server, exchange: Exchange) -> None:
        """Answers for a path that is none, or that has other methods."""
        asked = f"{exchange.scope['method']} {exchange.scope['path']}"
        if not methods:
            raise NotFound(f"{asked} does not exist here; see /openapi.json")
        allowed = ", ".join(sorted(methods))
        exchange.headers.append((b"allow", allowed.encode()))
        raise WrongMethod(f"{asked} is not served here; the methods of this path: {allowed}")

    return refuse


class _Endpoint:
    """One operation as an ASGI application. All that goes wrong in it becomes an answer here."""

    def __init__(
        self, server: Server, answer: Answer, voice: Voice = OPENAI, *, open: bool
    ) -> None:
        """`open`: for everybody, and not worth a line of the log."""
        self._server = server
        self._answer = answer
        self.voice = voice
        self._open = open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        options = self._server.options
        exchange = Exchange(
            scope,
            receive,
            send,
            self.voice,
            silent_s=options.silent_s,
            keeps_text=options.log_requests == "text",
        )
        started_s = time.monotonic()
        try:
            try:
                with self._server.counted():
                    options.hosts.check(exchange.header)
                    if not self._open:
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
