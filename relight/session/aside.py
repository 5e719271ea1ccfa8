"""Runs in a thread what would make streams wait. Knows what encoding costs, and nothing else."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from relight.text.conversation import Conversation

T = TypeVar("T")

# About 1 MB of text is encoded in a second: longer text goes to a thread, so that no stream waits
# longer than 2 ms for it.
INLINE_CHARACTERS = 2048
# Text that takes more than some seconds, and 30 bytes of memory a character meanwhile, waits for
# other text of this size: so no number of such prompts takes all threads, or all memory.
HUGE_CHARACTERS = 2**21
TOOL_CHARACTERS = 500  # of a common schema; counting them would cost what is to be saved


class Aside:
    """The threads of one session."""

    def __init__(self) -> None:
        self._huge = ThreadPoolExecutor(1, thread_name_prefix="huge text")

    async def __call__(self, work: Callable[[], T], num_characters: int) -> T:
        if num_characters < INLINE_CHARACTERS:
            return work()
        if num_characters < HUGE_CHARACTERS:
            return await asyncio.to_thread(work)
        return await asyncio.get_running_loop().run_in_executor(self._huge, work)


def num_characters(conversation: Conversation) -> int:
    """Roughly, and cheaply, how long the prompt will be."""
    count = TOOL_CHARACTERS * len(conversation.tools)
    for message in conversation.messages:
        count += len(message.content or "") + len(message.reasoning or "")
        count += sum(len(call.arguments) for call in message.tool_calls)
    return count
