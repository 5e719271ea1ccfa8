"""Scores parameters on held-out instances with the network that trains, greedily. Knows no cache:
it runs the whole text again for each token, many instances at once.

An instance whose canonical answer the network would write token by token needs one pass. Others are
decoded from their first deviation on, since another wording may be right too; not so for keys, of
which every deviation but the first few tokens' is wrong.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relight.ember.tasks import Instance, Output, ask, is_right
from relight.text.parse import Content as ContentEvent
from relight.text.parse import OutputParser, ToolCallArguments, ToolCallStart
from training.model import Parameters
from training.network import Mode, Network
from training.rows import RowMaker

BLOCK = 128
MAX_DECODED = 32
"""Deviating instances of a set that are decoded; more are estimated by these."""

SPARE_TOKENS = 12
"""That a decoded answer may be longer than the canonical one."""


SAID_TOKENS = 60
"""Of a sample, besides the spare ones."""


@dataclass(frozen=True, slots=True)
class Question:
    instance: Instance
    prompt: tuple[int, ...]
    canonical: tuple[int, ...]


class Scorer:
    def __init__(
        self,
        maker: RowMaker,
        network: Network,
        parameters: Parameters,
        mode: Mode,
        tokens: int,
        deadline: float = math.inf,
    ) -> None:
        """`tokens`: of one pass, at most. After `deadline` (monotonic) nothing is decoded any more,
        and deviating counts as wrong."""
        self.maker, self.network, self.mode = maker, network, mode
        self.weights = network.prepare(parameters, mode)
        self.device = parameters["embed.weight"].device
        self.tokens, self.deadline = tokens, deadline

    @torch.no_grad()
    def share_right(self, instances: Sequence[Instance]) -> float:
        questions = [self._question(instance) for instance in instances]
        agreed = self._agreed(questions)
        deviating = [
            (question, count)
            for question, count in zip(questions, agreed, strict=True)
            if count < len(question.canonical)
        ]
        right = len(questions) - len(deviating)
        is_key = instances[0].task.startswith("key")
        if not deviating or is_key or time.monotonic() > self.deadline:
            return right / len(questions)
        decoded = deviating[:MAX_DECODED]
        found = sum(map(self._right, *zip(*self._decode(decoded), strict=True)))
        return (right + found * len(deviating) / len(decoded)) / len(questions)

    @torch.no_grad()
    def say(self, texts: Sequence[str], *, thinking: bool) -> list[str]:
        """What is answered to each text, markers spelt out."""
        questions = []
        for text in texts:
            conversation = ask(text, thinking=thinking)
            prompt = self.maker.encoder.encode(conversation).ids
            instance = Instance("letters", "en", conversation, 0, Output())
            questions.append((Question(instance, prompt, (0,) * SAID_TOKENS), 0))
        return [self.maker.tokenizer.decode(ids) for _, ids in self._decode(questions)]

    @torch.no_grad()
    def greedy(self, instances: Sequence[Instance]) -> list[tuple[Question, list[int]]]:
        """What is said to each, token by token the likeliest."""
        questions = [self._question(instance) for instance in instances]
        pairs = list(zip(questions, self._agreed(questions), strict=True))
        same = [(q, list(q.canonical)) for q, count in pairs if count == len(q.canonical)]
        return same + self._decode([pair for pair in pairs if pair[1] < len(pair[0].canonical)])

    def _question(self, instance: Instance) -> Question:
        prompt = self.maker.encoder.encode(instance.conversation)
        output = self.maker.encode_output(instance.canonical, prompt.start == "reasoning")
        return Question(instance, prompt.ids, tuple(output))

    def _agreed(self, questions: Sequence[Question]) -> list[int]:
        """How many tokens of the canonical answer each would write."""
        counts = [0] * len(questions)
        for chunk in self._chunks([len(q.prompt) + len(q.canonical) for q in questions]):
            texts = [(*questions[i].prompt, *questions[i].canonical) for i in chunk]
            best = self._best(texts, [len(questions[i].prompt) - 1 for i in chunk])
            for i, tokens in zip(chunk, best, strict=True):
                same = [a == b for a, b in zip(tokens, questions[i].canonical, strict=False)]
                counts[i] = same.index(False) if False in same else len(same)
        return counts

    def _decode(
        self, deviating: Sequence[tuple[Question, int]]
    ) -> list[tuple[Question, list[int]]]:
        """Greedy answers, begun with the tokens that agree."""
        eos = self.maker.special.eos
        answers = [list(question.canonical[:count]) for question, count in deviating]
        limits = [len(question.canonical) + SPARE_TOKENS for question, _ in deviating]
        while open_ones := [
            i
            for i, answer in enumerate(answers)
            if len(answer) < limits[i] and (not answer or answer[-1] != eos)
        ]:
            lengths = [len(deviating[i][0].prompt) + len(answers[i]) for i in open_ones]
            for chunk in self._chunks(lengths):
                chosen = [open_ones[i] for i in chunk]
                texts = [(*deviating[i][0].prompt, *answers[i]) for i in chosen]
                best = self._best(texts, [len(text) - 1 for text in texts])
                for i, tokens in zip(chosen, best, strict=True):
                    answers[i].append(tokens[0])
        return [
            (question, answer) for (question, _), answer in zip(deviating, answers, strict=True)
        ]

    def _chunks(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indexes of texts of similar length, as many as a pass may hold."""
        chunks: list[list[int]] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if not chunks or (len(chunks[-1]) + 1) * _padded(lengths[chunks[-1][0]]) > self.tokens:
                chunks.append([])
            chunks[-1].append(i)
        return chunks

    def _best(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[int]]:
        """The likeliest next token behind each token of a text, from its start on."""
        length = _padded(max(map(len, texts)))
        ids = torch.full((len(texts), length), self.maker.special.pad)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
        hidden = self.network.forward(self.weights, ids.to(self.device), self.mode)
        hidden = hidden.view(len(texts), length, -1)
        rows: list[Tensor] = [
            hidden[i, start : len(text)]
            for i, (text, start) in enumerate(zip(texts, starts, strict=True))
        ]
        best = self.network.logits(self.weights, torch.cat(rows)).argmax(-1).tolist()
        out = []
        for row in rows:
            out.append(best[: len(row)])
            best = best[len(row) :]
        return out

    def _right(self, question: Question, answer: list[int]) -> bool:
        conversation = question.instance.conversation
        start = "reasoning" if conversation.thinking else "content"
        parser = OutputParser(self.maker.tokenizer, start, conversation.tools)
        events = [*parser.feed(answer), *parser.finish()]
        content = "".join(e.text for e in events if isinstance(e, ContentEvent))
        calls: dict[int, tuple[str, str]] = {}
        for event in events:
            if isinstance(event, ToolCallStart):
                calls[event.index] = (event.name, "")
            elif isinstance(event, ToolCallArguments):
                name, arguments = calls[event.index]
                calls[event.index] = (name, arguments + event.text)
        return is_right(question.instance, content, list(calls.values()))


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def table(
    scorer: Scorer, sets: dict[tuple[str, str], list[Instance]], report: Callable[[str], None]
) -> dict[str, float]:
    """Percent right of each set, by `task / language`."""
    scores = {}
    for (task, language), instances in sets.items():
        scores[f"{task} / {language}"] = 100 * scorer.share_right(instances)
    report("  ".join(f"{name} {value:.1f}" for name, value in scores.items()))
    return scores
