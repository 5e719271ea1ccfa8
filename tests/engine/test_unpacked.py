"""On a processor matrices are kept decoded where that is little memory: no text depends on it, and
the memory table tells it."""

from pathlib import Path

import pytest

from relight.base.settings import Settings
from relight.base.types import EngineInfo, Request
from relight.engine import assemble as assembly
from relight.engine.memory import UNPACKED
from tests.engine.real import sampled, words, write_checkpoint

ANSWERS = 3


def answers(checkpoint: Path) -> tuple[EngineInfo, list[object]]:
    settings = Settings(
        model=str(checkpoint), device="cpu", max_context=256, num_slots=2, cache_bytes=2**24
    )
    loop, info = assembly.assemble(settings, lambda done, total: None)
    for number in range(ANSWERS):
        prompt = tuple(words(number, 20 + 50 * number))
        loop.add(Request(id=f"r{number}", prompt=prompt, sampling=sampled(6, logprobs=2)))
    told: dict[str, list[object]] = {f"r{number}": [] for number in range(ANSWERS)}
    while not loop.idle:
        for delta in loop.step():
            told[delta.id] += [delta.tokens, delta.logprobs]
    return info, [told[f"r{number}"] for number in range(ANSWERS)]


@pytest.mark.parametrize("model", ["v4", "v41"])
def test_unpacked_weights_change_no_text(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path, model)
    info, found = answers(checkpoint)
    monkeypatch.setattr(assembly, "room_to_unpack", lambda available: 0)
    plain, wanted = answers(checkpoint)
    assert found == wanted
    predicted, measured = dict(info.memory), dict(info.measured)
    assert measured[UNPACKED] == predicted[UNPACKED] > measured["weights"]
    assert measured["weights"] == dict(plain.measured)["weights"]
    assert UNPACKED not in {*dict(plain.memory), *dict(plain.measured)}
    assert info.operator == plain.operator
