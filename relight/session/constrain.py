"""The form that a request asks for → the constraint that its answer gets, or the field that cannot
be followed. Knows no wire format."""

import asyncio

from relight.base.errors import BadRequest
from relight.base.types import Constraint
from relight.session.checker import Checker
from relight.text.calls import Markup
from relight.text.constrain import Wanted, constraints, suspects
from relight.text.tokenizer import SpecialTokens

INLINE_TOOLS = 100
"""Each takes some 10 µs."""


class Constrainer:
    def __init__(self, checker: Checker, markup: Markup, special: SpecialTokens) -> None:
        self._checker = checker
        self._markup = markup
        self._special = special

    async def constraint(self, wanted: Wanted) -> Constraint | None:
        """None if any answer will do. Raises `BadRequest` that names the field whose grammar does
        not compile in time."""
        reason = ""
        for constraint in await _aside(wanted, self._markup, self._special):
            if wanted.is_plain:
                return constraint
            reason = await self._checker.reason_against(constraint.grammar)
            if not reason:
                return constraint
        if reason:
            await self._blame(wanted, reason)
        return None

    async def _blame(self, wanted: Wanted, reason: str) -> None:
        for suspect in suspects(wanted, self._markup):
            if found := await self._checker.reason_against(suspect.grammar):
                raise BadRequest(
                    f"{suspect.what} cannot be followed: {found}; correct or simplify it",
                    param=suspect.param,
                )
        param = wanted.format.param if wanted.format else "tools"
        raise BadRequest(
            f"{param} cannot be followed: {reason}; correct or simplify it", param=param
        )


async def _aside(wanted: Wanted, markup: Markup, special: SpecialTokens) -> list[Constraint]:
    """Schemas may be long, and tools many: then no stream waits for them to be written down."""
    if wanted.is_plain and len(wanted.tools) <= INLINE_TOOLS:
        return constraints(wanted, markup, special)
    return await asyncio.to_thread(constraints, wanted, markup, special)
