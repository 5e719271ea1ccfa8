"""The audit tells an engine that keeps the promises from engines that break one each."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from relight.base.settings import Settings
from relight.base.types import Logprobs, Request
from relight.lab.audit import Answer, Audit, Promise

Noise = Callable[[Settings, int, int, int], object]
"""What a token wrongly hangs on: settings, the number of batch mates, cached tokens, and how often
its request has lost its slot."""


class Hashing:
    """An engine whose next token is a hash of the tokens before it, and of `noise`."""

    vocab_size = 1000

    def __init__(self, settings: Settings, noise: Noise, num_pages: int) -> None:
        self.settings = settings
        self.num_pages = num_pages
        self.num_preemptions = 0
        self.noise = noise
        self.seen: list[tuple[int, ...]] = []

    def run(self, requests: Sequence[Request]) -> list[Answer]:
        short = bool(self.num_pages) and len(requests) > 1  # then the youngest starts over
        self.num_preemptions += short
        *older, youngest = requests
        answers = [self._answer(request, len(requests), 0) for request in older]
        return [*answers, self._answer(youngest, len(requests), int(short))]

    def scores(
        self, prompt: Sequence[int], made: Sequence[int], widths: Iterable[int]
    ) -> list[list[Logprobs]]:
        """To it, rows beside a row are as batch mates."""
        return [
            [
                Logprobs(float(hash((*prompt, *made[:at], self.noise(self.settings, width, 0, 0)))))
                for at in range(1, len(made) + 1)
            ]
            for width in widths
        ]

    def _answer(self, request: Request, mates: int, lost: int) -> Answer:
        cached = self._cached(request.prompt)
        tokens = list(request.prompt)
        for _ in range(request.sampling.max_tokens):
            state = (tokens, request.sampling.seed, self.noise(self.settings, mates, cached, lost))
            digest = hashlib.sha256(repr(state).encode()).digest()
            tokens.append(int.from_bytes(digest[:2], "little") % self.vocab_size)
        self.seen.append(tuple(tokens))
        return Answer(tuple(tokens[len(request.prompt) :]), cached)

    def _cached(self, prompt: tuple[int, ...]) -> int:
        if self.settings.prefix_cache == "off":
            return 0
        whole = range((len(prompt) - 1) // 128 * 128, 0, -128)
        return next((n for n in whole for s in self.seen if s[:n] == prompt[:n]), 0)


def verdicts(noise: Noise, **settings: object) -> dict[str, Promise]:
    @contextmanager
    def start(settings: Settings, *, num_pages: int = 0) -> Iterator[Hashing]:
        yield Hashing(settings, noise, num_pages)

    audit = Audit(Settings(model="none", device="cpu", **settings), start, tokens=8)  # type: ignore
    return {promise.text.split()[0]: promise for promise in audit.promises()}


NAMES = {"logits", "batch", "recorded", "any", "warm", "with", "starting", "reused", "the"}


def test_an_engine_that_hangs_on_its_past_only_keeps_every_promise() -> None:
    found = verdicts(lambda settings, mates, cached, lost: None)
    assert {name for name, promise in found.items() if promise.verdict == "kept"} == NAMES
    assert found["text"].verdict == "not checked"


def test_logits_are_compared_width_by_width() -> None:
    kept = verdicts(lambda *_: None)["logits"]
    assert kept.detail.endswith("bit-equal at each width from 1 to 16")
    broken = verdicts(lambda settings, mates, *_: mates in (3, 7))["logits"]
    assert broken.verdict == "not kept"
    assert broken.detail.endswith("not bit-equal at widths 3, 7")


def test_guesses_are_compared_depth_by_depth() -> None:
    kept = verdicts(lambda *_: None, spec="dspark", spec_k=7)["text"]
    assert (kept.verdict, kept.detail.split(":")[0]) == (
        "kept",
        "4 requests, equal at k 1, 3, 7, 15",
    )
    broken = verdicts(lambda settings, *_: settings.spec_k // 7, spec="dspark", spec_k=7)["text"]
    assert broken.verdict == "not kept"
    assert broken.detail.startswith("4 requests, equal at k 1, 3: output token 0 is")


@pytest.mark.parametrize(
    ("noise", "broken"),
    [
        (lambda settings, mates, cached, lost: mates, {"logits", "batch"}),
        (lambda settings, mates, cached, lost: mates > 6, {"logits", "batch"}),
        (lambda settings, mates, cached, lost: settings.graphs == "on", {"recorded"}),
        (lambda settings, mates, cached, lost: settings.max_step_tokens, {"any"}),
        (lambda settings, mates, cached, lost: cached, {"warm", "with"}),
        (lambda settings, mates, cached, lost: lost, {"starting", "reused"}),
        (lambda settings, mates, cached, lost: settings.threads, {"the"}),
    ],
    ids=["mates", "neighbours", "recorded", "chunks", "cache", "preemption", "threads"],
)
def test_a_broken_promise_is_named_and_no_other(noise: Noise, broken: set[str]) -> None:
    found = verdicts(noise)
    assert {name for name, promise in found.items() if promise.verdict == "not kept"} == broken
    assert {name for name, promise in found.items() if promise.verdict == "kept"} == NAMES - broken


def test_an_engine_that_reuses_nothing_is_not_called_true_to_its_cache() -> None:
    @contextmanager
    def start(settings: Settings, *, num_pages: int = 0) -> Iterator[Hashing]:
        engine = Hashing(settings, lambda *_: None, num_pages)
        engine._cached = lambda prompt: 0  # type: ignore[method-assign]
        yield engine

    audit = Audit(Settings(model="none", device="cuda"), start, tokens=2)
    found = {promise.text.split()[0]: promise.verdict for promise in audit.promises()}
    unchecked = ("warm", "with", "reused", "the")
    assert {found[name] for name in unchecked} == {"not checked"}


def test_bounded_replay_is_named_as_approximate_with_what_it_costs() -> None:
    """And all else that is promised is checked under it."""
    assert "replay" not in verdicts(lambda *_: None)
    found = verdicts(lambda settings, *_: settings.replay, replay="bounded")
    assert found["replay"].verdict == "approximate"
    assert "equal to those of replay exact: 0, in the first token 0" in found["replay"].detail
    assert {name for name, promise in found.items() if promise.verdict == "kept"} == NAMES
    equal = verdicts(lambda *_: None, replay="bounded")["replay"]
    assert (equal.verdict, "exact: 8, in" in equal.detail) == ("approximate", True)
