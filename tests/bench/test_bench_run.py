"""A run refuses what cannot be measured before it sends it, and says what it was."""

import asyncio

import pytest

from relight.base.errors import BadSetting, Unavailable
from relight.bench.http import target
from relight.bench.result import Result
from relight.bench.run import Run, WarmUpFailed
from relight.bench.scenario import Scenario
from relight.bench.selftest.harness import scenario
from relight.bench.selftest.script import Reply, Script
from relight.bench.selftest.server import ScriptedServer


def measured(script: Script, wanted: Scenario) -> Result:
    async def run() -> Result:
        async with ScriptedServer(script) as server:
            try:
                return (await Run(target(server.url), wanted).measure())[0]
            finally:
                script.measured_tokens = max((s.asked.max_tokens for s in server.served), default=0)

    return asyncio.run(run())


def test_a_length_that_the_server_cannot_hold_is_refused_before_it_is_sent() -> None:
    script = Script(max_model_len=4096)
    with pytest.raises(WarmUpFailed, match=r"wants 5,008 tokens.*holds 4,096"):
        measured(script, scenario(input_tokens=5000))
    assert script.measured_tokens <= 4, "an answer of full length was asked for"


def test_a_server_that_refuses_the_long_ones_is_told_apart_from_one_that_is_gone() -> None:
    script = Script(reply=lambda asked: Reply(status=400 if len(asked.prompt) > 2000 else 200))
    with pytest.raises(WarmUpFailed, match="a warm-up request failed: http, status 400"):
        measured(script, scenario(input_tokens=1400))
    with pytest.raises(Unavailable, match="does not answer 200"):
        asyncio.run(Run(target("http://127.0.0.1:9"), scenario()).measure())


def test_several_processes_and_an_end_that_only_one_knows_are_refused() -> None:
    wanted = scenario(until="one")
    with pytest.raises(BadSetting, match="clients is 2 and until 'one'"):
        Run(target("http://127.0.0.1:9"), wanted, clients=2)


def test_a_load_that_goes_on_until_a_class_has_ended_ends_then() -> None:
    result = measured(Script(), scenario(requests=4, users=1, until="one"))
    assert result.counts.sent == 4
    assert result.workload.planned is None
    result = measured(Script(), scenario(requests=4000, users=2, seconds=0.5))
    assert 0 < result.counts.sent < 4000
