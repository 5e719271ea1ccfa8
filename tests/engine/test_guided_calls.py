"""Random tools, random logits: what an engine makes under a constraint is read back as calls whose
arguments their schemas allow, or was cut off at `max_tokens`."""

import json
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor

import pytest
import torch
from torch import Tensor

from relight.base.errors import BadRequest
from relight.base.types import Request, SamplingParams
from relight.text.calls import Markup
from relight.text.constrain import Wanted, constraints
from relight.text.conversation import Tool
from relight.text.dsml import V4_TAGS, V41_TAGS
from relight.text.parse import OutputParser, ToolCallArguments, ToolCallEnd, ToolCallStart
from tests.engine import test_guides
from tests.engine.conftest import AtLast, AtOnce, SimulatedEngine
from tests.engine.test_guides import MARK, TINY, WORDS, Guided, guides
from tests.text.constrained import random_object, whole

REQUESTS = 24
MAX_TOKENS = 300
ENDS = [*(TINY.encode_text(text)[0] for text in '"}]<'), MARK.dsml, TINY.encode_text("/")[0]]


def eager(value: int) -> Tensor:
    """Logits that are equal but for some noise, and for what ends a text."""
    logits = torch.rand(TINY.vocab_size, generator=torch.Generator().manual_seed(value))
    logits[ENDS] += 3
    logits[ENDS[-1]] += 3
    return logits


def read(tokens: list[int], tools: tuple[Tool, ...]) -> list[tuple[str, str, bool]]:
    """Name, arguments and whether it is complete, of each call."""
    parser = OutputParser(TINY, "tools", tools)
    found: list[tuple[str, str, bool]] = []
    for event in [*parser.feed(tokens), *parser.finish(stopped=False)]:
        match event:
            case ToolCallStart(name=name):
                found.append((name, "", False))
            case ToolCallArguments(text=text):
                name, before, _ = found[-1]
                found[-1] = name, before + text, False
            case ToolCallEnd():
                found[-1] = (*found[-1][:2], True)
            case other:
                raise AssertionError(f"{other} is no part of a call")
    return found


@pytest.mark.parametrize("executor", [AtOnce, AtLast], ids=["at once", "at last"])
def test_calls_of_random_tools_are_valid_or_cut_off(
    make_engine: type[SimulatedEngine],
    monkeypatch: pytest.MonkeyPatch,
    executor: Callable[[], Executor],
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="judges the calls; of the extra `test`")
    monkeypatch.setattr(test_guides, "logits_of", eager)
    rng = random.Random("random tools")
    guided = Guided(make_engine, executor(), context=400, num_pages=600, admit_output=MAX_TOKENS)
    guided.engine.loop._guides = guides(AtOnce())
    asked: dict[str, tuple[Tool, ...]] = {}
    while len(asked) < REQUESTS:
        tools = tuple(
            Tool(name, None, whole(random_object(rng), rng), strict=True) for name in ("f", "g")
        )
        wanted = Wanted(start="tools", tools=tools, forced=True, parallel=rng.random() < 0.5)
        markup = Markup(rng.choice([V4_TAGS, V41_TAGS]), MARK.dsml)
        (constraint,) = constraints(wanted, markup, MARK)
        try:
            WORDS.compile(constraint.grammar)
        except BadRequest:
            continue
        id = f"r{len(asked)}"
        sampling = SamplingParams(
            max_tokens=MAX_TOKENS, seed=len(asked), stop_token_ids=(MARK.eos,)
        )
        asked[id] = tools
        guided.add(Request(id=id, prompt=(1, 2), sampling=sampling, constraint=constraint))
    guided.run()
    seen: Counter[str] = Counter(guided.engine.finishes.values())
    for id, tools in asked.items():
        text = guided.engine.texts[id]
        calls = read([token for token in text if token != MARK.eos], tools)
        assert calls
        if guided.engine.finishes[id] == "stop":
            assert all(complete for _, _, complete in calls)
        else:
            assert len(text) == MAX_TOKENS
        for name, arguments, complete in calls:
            if complete:
                schema = next(tool.parameters for tool in tools if tool.name == name)
                jsonschema.validate(json.loads(arguments), schema)
                seen["calls"] += 1
    assert seen["stop"] > REQUESTS // 3, seen
    assert seen["length"], seen
    assert seen["calls"] > REQUESTS // 2, seen
