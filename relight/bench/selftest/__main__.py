"""A scripted server as a process of its own, to try the commands on.

python -m relight.bench.selftest PORT [first_s] [gap_s] [model_len]
"""

import asyncio
import sys

from relight.bench.selftest.script import Reply, Script
from relight.bench.selftest.server import ScriptedServer


async def serve(port: int, first_s: float = 0.02, gap_s: float = 0.002, limit: float = 1e6) -> None:
    script = Script(
        reply=lambda _: Reply(first_s=first_s, gap_s=gap_s),
        max_model_len=int(limit),
        prefix_cache=True,
    )
    server = ScriptedServer(script)
    await server.start(port)
    print(server.url, flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    port, *times = sys.argv[1:]
    asyncio.run(serve(int(port), *map(float, times)))
