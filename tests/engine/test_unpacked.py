"""On a processor matrices are kept decoded where that is little memory: no text depends on it, and
the memory table tells it."""

from pathlib import Path

import pytest

from relight.base.errors import CannotFit
from relight.base.settings import Settings
from relight.base.types import EngineInfo, Request
from relight.engine import assemble as assembly
from relight.engine.memory import UNPACKED
from relight.kernels.unpack import unpack
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


def test_state_that_fits_beside_packed_weights_alone_has_them_stay_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most of `cache_bytes` that a start allows is allowed by all of it."""
    checkpoint = write_checkpoint(tmp_path, "v4")
    memory, kept = 200_000_000, 0

    def keep(weights: object, room: int) -> tuple[object, int]:
        nonlocal kept
        weights, kept = unpack(weights, room)
        return weights, kept

    def free(device: object, taken: int = 0) -> int:
        return (memory - kept - taken) // 2

    monkeypatch.setattr(assembly, "available_bytes", lambda: memory - kept)
    monkeypatch.setattr(assembly, "free_bytes", free)
    monkeypatch.setattr(assembly, "unpack", keep)

    def rows(cache_bytes: int) -> dict[str, int]:
        nonlocal kept
        kept = 0
        settings = Settings(
            model=str(checkpoint),
            device="cpu",
            num_slots=100,
            max_context=4608,
            prefix_cache="off",
            cache_bytes=cache_bytes,
        )
        return dict(assembly.assemble(settings, lambda done, total: None)[1].measured)

    with pytest.raises(CannotFit, match="cache_bytes to at most") as refused:
        rows(memory)
    most = int(refused.value.message.rpartition(" ")[2].replace(",", ""))
    assert UNPACKED not in rows(most)
    assert UNPACKED in rows(most - 2**24)
