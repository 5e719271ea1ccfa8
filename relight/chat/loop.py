"""A chat from its first prompt to its last: read, answer, show. Knows neither terminal nor wire."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from relight.base.errors import RelightError
from relight.chat.answer import Answer
from relight.chat.commands import Commands, Leave
from relight.chat.dialogue import Dialogue
from relight.chat.lines import Lines
from relight.chat.source import Ask, Event, Source
from relight.chat.view import View

PROMPT = "> "


class Chat:
    """Turns are run by `runner`, whose source is open. Its Ctrl-C cancels a turn, and no more.

    What was said and got no answer, for a fault or for Ctrl-C before there was any content, is
    taken back and offered again.
    """

    def __init__(
        self,
        source: Source,
        dialogue: Dialogue,
        view: View,
        runner: asyncio.Runner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._dialogue = dialogue
        self._view = view
        self._runner = runner
        self._clock = clock
        self._commands = Commands(dialogue, view, lambda: self.last_reasoning)
        self.last_reasoning = ""
        self.num_faults = 0

    def unfold(self) -> None:
        if self.last_reasoning:
            self._view.unfold(self.last_reasoning)

    def run(self, lines: Lines) -> None:
        """Until the lines end or the user leaves. Raises KeyboardInterrupt where nobody sits."""
        unsent = ""
        while True:
            try:
                offered, unsent = unsent, ""
                text = lines.read(self._prompt(), offered)
                if text.strip() and not self._commands.run(text):
                    unsent = self._turn(text, lines)
            except (EOFError, Leave):
                return
            except RelightError as error:
                self._fault(error)
            except KeyboardInterrupt:
                if not lines.interactive:
                    raise
                self._view.say("Ctrl-D or /quit leaves")

    def _prompt(self) -> str:
        call = self._dialogue.open_call
        return f"result of {call.name}> " if call else PROMPT

    def _turn(self, text: str, lines: Lines) -> str:
        """Returns the text if it got no answer."""
        self._dialogue.say(text)
        if not self._dialogue.answer_due:
            return ""
        answer = Answer(asked_s=self._clock())
        try:
            with self._view.answering(answer) as show:
                self._runner.run(self._take(self._dialogue.ask(), answer, show))
        except RelightError as error:
            self._fault(error)
            return self._dialogue.take_back()
        except KeyboardInterrupt:
            if not lines.interactive:
                raise
        finally:
            self.last_reasoning = answer.reasoning
        self._view.ended(answer)
        if answer.message is None:
            return self._dialogue.take_back()
        self._dialogue.messages.append(answer.message)
        return ""

    async def _take(self, ask: Ask, answer: Answer, show: Callable[[Event], None]) -> None:
        async with aclosing(self._source.answer(ask)) as events:
            async for event in events:
                answer.add(event, self._clock())
                show(event)

    def _fault(self, error: RelightError) -> None:
        self.num_faults += 1
        self._view.error(error.message)
