"""The messages between an engine and its clients, in one process or across two. Knows no socket."""

import msgspec

from relight.base import errors
from relight.base.types import EngineInfo, EngineStats, Request, TokenDelta


class Fault(msgspec.Struct, frozen=True):
    """An error of `base/errors` on its way through a process boundary."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: int = 1

    @classmethod
    def of(cls, error: errors.RelightError) -> "Fault":
        retry_after_s = error.retry_after_s if isinstance(error, errors.Overloaded) else 1
        return cls(type(error).__name__, error.message, error.param, retry_after_s)

    def error(self) -> errors.RelightError:
        kind: type[errors.RelightError] = getattr(errors, self.kind)
        if kind is errors.Overloaded:
            return errors.Overloaded(
                self.message, param=self.param, retry_after_s=self.retry_after_s
            )
        return kind(self.message, param=self.param)


class Add(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    id: str


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Answer all open requests with an error, then end."""


ToEngine = Add | Abort | Stop


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Bytes of weights that have been read, of so many."""

    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: EngineInfo


class NotReady(msgspec.Struct, frozen=True, tag=True):
    """The engine could not be built. Nothing follows."""

    fault: Fault


class Refused(msgspec.Struct, frozen=True, tag=True):
    id: str
    fault: Fault


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """What a step made and how the engine stands after it; without deltas it is a sign of life.
    `stats.spec_choices` are there where they have changed."""

    deltas: list[TokenDelta]
    stats: EngineStats


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The engine has ended in good order. Nothing follows."""


FromEngine = Loading | Ready | NotReady | Refused | Tokens | Ended
