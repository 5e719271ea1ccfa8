"""The life of a request without HTTP. Knows no wire format, and no engine beyond its client."""

from relight.session.job import Job, Observer
from relight.session.pieces import Answer, CallStart, Candidate, Finish, Piece, Scored, collect
from relight.session.request import Options, SamplingDefaults
from relight.session.session import Session
from relight.session.together import collect_all, together

__all__ = [
    "Answer",
    "CallStart",
    "Candidate",
    "Finish",
    "Job",
    "Observer",
    "Options",
    "Piece",
    "SamplingDefaults",
    "Scored",
    "Session",
    "collect",
    "collect_all",
    "together",
]
