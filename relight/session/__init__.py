"""The life of a request without HTTP. Knows no wire format, and no engine beyond its client."""

from relight.session.pieces import Answer, CallStart, Finish, Piece, collect
from relight.session.request import Options, SamplingDefaults
from relight.session.session import Job, Observer, Session

__all__ = [
    "Answer",
    "CallStart",
    "Finish",
    "Job",
    "Observer",
    "Options",
    "Piece",
    "SamplingDefaults",
    "Session",
    "collect",
]
