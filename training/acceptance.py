"""Measures how much of a draft's proposals a backbone accepts, on what it says greedily to held-out
questions. Knows no cache: all blocks of a text are made at once, and the answer is walked.

A step proposes a block, keeps the proposals that the backbone would have said itself, and adds the
token that it says next: its advance is their number plus one, at threshold 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from relight.ember.tasks import Instance, Output, ask
from relight.ember.words import Language
from training.draft import DraftNetwork
from training.model import Parameters
from training.network import Mode
from training.score import Question, Scorer
from training.smalltalk import draw_talk
from training.snippets import draw_snippet

SERVED = Mode(activations=True)
PAD_PIECE = 128


@dataclass(slots=True)
class Walk:
    """Sums over the steps of some answers. `reached`: steps that accepted the place, by place."""

    steps: int
    tokens: int
    reached: list[int]

    def add(self, other: "Walk") -> None:
        self.steps += other.steps
        self.tokens += other.tokens
        self.reached = [a + b for a, b in zip(self.reached, other.reached, strict=True)]

    def report(self) -> dict[str, object]:
        steps = max(self.steps, 1)
        return {
            "advance": round(self.tokens / steps, 3),
            "accepted by place": [round(count / steps, 3) for count in self.reached],
            "steps": self.steps,
        }


def slices(
    sets: dict[tuple[str, str], list[Instance]], seed: int, count: int
) -> dict[str, list[Instance]]:
    """Questions of each kind of text. Tasks are held out; talk and code are drawn from another seed
    than what was learnt, of the same sentences."""
    rng = Random(f"acceptance {seed}")
    english, chinese = (talk(rng, language, count) for language in ("en", "zh"))
    tools = [*sets["tool call", "en"][: count // 2], *sets["tool result", "en"][: count // 2]]
    code = [_said(*draw_snippet(rng, "en")) for _ in range(count)]
    letters = sets["letters", "zh"][: count // 2]
    return {
        "arithmetic": sets["arithmetic", "en"][:count],
        "tools": tools,
        "prose": english,
        "code": code,
        "Chinese": [*chinese[: count // 2], *letters],
    }


def talk(rng: Random, language: Language, count: int) -> list[Instance]:
    return [_said(*draw_talk(rng, language)) for _ in range(count)]


def _said(question: str, answer: str) -> Instance:
    return Instance("letters", "en", ask(question, thinking=False), 0, Output(answer))


@torch.no_grad()
def measure(
    scorer: Scorer, drafting: DraftNetwork, draft: Parameters, some: dict[str, list[Instance]]
) -> dict[str, dict[str, object]]:
    """Reports by slice and of all steps together. `draft` as it is stored."""
    weights = drafting.prepare(draft, SERVED)
    size = drafting.draft.block_size
    pooled, reports = Walk(0, 0, [0] * size), {}
    for name, instances in some.items():
        total = Walk(0, 0, [0] * size)
        answers = scorer.greedy(instances)
        for start in range(0, len(answers), 8):
            for walk in _walks(scorer, drafting, weights, answers[start : start + 8]):
                total.add(walk)
        pooled.add(total)
        reports[name] = total.report()
    return {"pooled": pooled.report(), **reports}


def _walks(
    scorer: Scorer,
    drafting: DraftNetwork,
    weights: Parameters,
    answers: Sequence[tuple[Question, list[int]]],
) -> list[Walk]:
    texts = [[*question.prompt, *answer] for question, answer in answers]
    length = -(-max(map(len, texts)) // PAD_PIECE) * PAD_PIECE
    ids = torch.full((len(texts), length + 1), scorer.maker.special.pad)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    proposals = _proposals(scorer, drafting, weights, ids.to(scorer.device)).tolist()
    return [
        walk(text, len(question.prompt), made)
        for text, (question, _), made in zip(texts, answers, proposals, strict=True)
    ]


def _proposals(scorer: Scorer, drafting: DraftNetwork, weights: Parameters, ids: Tensor) -> Tensor:
    """Of ids [B, T + 1]: what is proposed behind the token after each position, [B, T, k]."""
    rows, length = ids.shape[0], ids.shape[1] - 1
    taps: list[Tensor] = []
    scorer.network.forward(scorer.weights, ids[:, :-1], scorer.mode, taps=taps)
    anchors = torch.arange(length, device=ids.device).view(1, -1, PAD_PIECE).expand(rows, -1, -1)
    blocks = drafting.blocks(weights, scorer.weights, ids, torch.cat(taps, dim=1), anchors, SERVED)
    size = drafting.draft.block_size
    hidden = blocks.hidden.view(rows * length, size, -1)
    logits = blocks.logits.view(rows * length, size, -1)
    before, made = ids[:, 1:].flatten(), []
    for place in range(size):
        follow, _ = drafting.follow(weights, hidden[:, place], logits[:, place], before)
        before = follow.argmax(-1)
        made.append(before)
    return torch.stack(made, dim=-1).view(rows, length, size)


def walk(text: Sequence[int], start: int, proposals: Sequence[Sequence[int]]) -> Walk:
    """From the answer's first token text[start], which the prompt's own step says, to its end."""
    size = len(proposals[0])
    total = Walk(0, 0, [0] * size)
    at = start - 1  # text[at + 1] is said and has not been run
    while at + 2 < len(text):
        wanted = text[at + 2 : at + 2 + size]
        same = [a == b for a, b in zip(proposals[at], wanted, strict=False)]
        accepted = same.index(False) if False in same else len(same)
        advance = min(accepted + 1, len(text) - at - 2)
        total.add(Walk(1, advance, [int(accepted > place) for place in range(size)]))
        at += accepted + 1
    return total
