"""Several jobs of one call at once: their pieces as they come. Knows no wire format."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from relight.cache.layout import PAGE_TOKENS
from relight.session.job import Job
from relight.session.pieces import Answer, Finish, Piece
from relight.session.session import Session


async def together(
    session: Session, jobs: Sequence[Job]
) -> AsyncGenerator[tuple[int, Piece], None]:
    """The pieces of all jobs, each with the index of its job. The first that fails ends all. One
    slot in the queue for each job: none runs ahead of the client.

    The choices of one prompt stand behind its first, and start when that one has read the prompt:
    then they find it in the cache instead of reading it side by side.
    """
    if len(jobs) == 1:
        async with aclosing(session.run(jobs[0])) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    queue: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue(len(jobs))

    async def run(index: int, started: asyncio.Event) -> None:
        job = jobs[index]
        if job.is_later_choice and len(job.request.prompt) > PAGE_TOKENS:
            await started.wait()
        try:
            async with aclosing(session.run(job, started)) as pieces:
                async for piece in pieces:
                    await queue.put((index, piece))
        except Exception as error:
            await queue.put((index, error))

    tasks = []
    started = asyncio.Event()
    for index, job in enumerate(jobs):
        if not job.is_later_choice:
            started = asyncio.Event()
        tasks.append(asyncio.ensure_future(run(index, started)))
    try:
        num_open = len(jobs)
        while num_open:
            index, result = await queue.get()
            if isinstance(result, Exception):
                raise result
            yield index, result
            num_open -= isinstance(result, Finish)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collect_all(session: Session, jobs: Sequence[Job]) -> list[Answer]:
    """The whole answers, in the order of the jobs."""
    answers = [Answer() for _ in jobs]
    async with aclosing(together(session, jobs)) as pieces:
        async for index, piece in pieces:
            answers[index].add(piece)
    return answers
