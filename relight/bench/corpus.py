"""Texts to fill prompts with, from what every installation has: the standard library's code, and
sentences made here in English, Chinese and JSON; on request from installed packages. Knows no
server and no tokens.

Windows are drawn without replacement from a seeded order, so no two prompts share one until the
corpus is used up, and then none starts where another did. Texts by memory (books, Wikipedia) are
left out: a model knows them by heart, which flatters drafts.
"""

import hashlib
import json
import math
import random
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from relight.base.errors import BadSetting
from relight.bench import packages

MIX = {"code": 5, "english": 3, "chinese": 1, "json": 1}
"""Windows of each kind in ten. A Chinese window has few characters and many tokens."""
WINDOW = 600
"""Characters of a piece at most."""
SHARE = {"chinese": 3, "reviews": 3, "news": 3}
"""Pieces of Chinese are a third as long: a character makes more tokens."""
CODE_BYTES = 4_000_000

WHO = [
    "the night shift",
    "a young surveyor",
    "our ferry pilot",
    "the archive clerk",
    "an old baker",
    "the relay team",
    "a visiting botanist",
    "the station master",
    "two brothers",
    "the tax office",
    "a retired judge",
    "the choir",
]
DID = [
    "measured",
    "repaired",
    "forgot",
    "sold",
    "counted",
    "painted",
    "described",
    "borrowed",
    "carried",
    "questioned",
    "weighed",
    "returned",
]
WHAT = [
    "the cracked bell",
    "eleven crates of pears",
    "a map of the delta",
    "the second ledger",
    "a brass pump",
    "the broken lift",
    "every open window",
    "a letter without a name",
    "the spare rails",
    "one grey horse",
    "the winter timetable",
    "the water meter",
]
WHEN = [
    "before the fog lifted",
    "while the river rose",
    "after the last train",
    "on the third attempt",
    "although nobody had asked",
    "because the contract said so",
    "during the strike",
    "without a word",
    "in spite of the cold",
    "as soon as the light came back",
]
谁 = [
    "夜班工人",
    "年轻的测量员",
    "渡船船长",
    "档案员",
    "老面包师",
    "来访的植物学家",
    "车站站长",
    "两兄弟",
    "退休法官",
]
做 = [
    "修好了",
    "忘记了",
    "卖掉了",
    "数了数",
    "画下了",
    "借走了",
    "称了称",
    "送回了",
    "检查了",
    "讨论过",
]
物 = [
    "那口裂了的钟",
    "十一箱梨",
    "三角洲的地图",
    "第二本账簿",
    "铜水泵",
    "坏了的电梯",
    "冬季时刻表",
    "水表",
    "一匹灰马",
]
时 = [
    "在雾散之前",
    "河水上涨的时候",
    "末班车以后",
    "第三次尝试时",
    "没有人要求",
    "因为合同这样写",
    "停电的那天",
]


Mix = str | dict[str, int]
MADE = ("english", "chinese", "json", "random")


def parts(corpus: Mix) -> dict[str, int]:
    """The kinds of a corpus and their share in windows: `mixed` is the default mixture. Raises
    BadSetting for a kind that there is not."""
    shares = corpus if isinstance(corpus, dict) else MIX if corpus == "mixed" else {corpus: 1}
    known = ("code", *MADE, *packages.SOURCES)
    for kind, share in shares.items():
        if kind not in known or share < 1:
            raise BadSetting(
                f"corpus has {kind!r} with a share of {share}; wanted 1 or more of: mixed, "
                f"{', '.join(known)}",
                param="corpus",
            )
    return dict(shares)


class Corpus:
    """Endless text of one seed. `hash` names the content: results of unlike corpora are unlike."""

    def __init__(self, corpus: Mix, seed: int) -> None:
        self.parts = parts(corpus)
        self._random = random.Random(seed)
        self._windows = {kind: self._source(kind) for kind in self.parts}
        self._order = [kind for kind, share in self.parts.items() for _ in range(share)]
        # Where Chinese is one of several, its pieces are shorter than the others'.
        self._share = SHARE if len(self.parts) > 1 else {}

    @property
    def hash(self) -> str:
        known = [self.parts, WINDOW, WHO, DID, WHAT, WHEN, 谁, 做, 物, 时]
        joined = hashlib.sha256(json.dumps(known).encode())
        for kind in self.parts:
            joined.update(b"" if kind in MADE else _known(kind).encode("utf-8", "replace"))
        return joined.hexdigest()[:16]

    def text(self, characters: int) -> str:
        """So many characters; kinds alternate in a drawn order. A short text has a smaller piece
        of every kind, so that all prompts make alike many tokens of a character."""
        if len(self.parts) == 1:
            return self._filled(self._order[:1], characters, WINDOW)
        pieces = sum(1 / self._share.get(kind, 1) for kind in self._order)
        # Two characters stand between pieces.
        size = math.ceil((characters - 2 * len(self._order)) / pieces)
        return self._filled(self._order, characters, max(1, min(WINDOW, size)))

    def _filled(self, kinds: Sequence[str], characters: int, size: int) -> str:
        found: list[str] = []
        left = characters
        while left > 0:
            for kind in self._random.sample(kinds, len(kinds)):
                found.append(next(self._windows[kind])[: size // self._share.get(kind, 1)])
                left -= len(found[-1]) + 2
        return "\n\n".join(found)[:characters]

    def _source(self, kind: str) -> Iterator[str]:
        if kind not in MADE:
            return self._windows_of(_known(kind))
        makers = {
            "english": self._english,
            "chinese": self._chinese,
            "json": self._json,
            "random": self._random_words,
        }
        return iter(makers[kind], "")

    def _windows_of(self, text: str) -> Iterator[str]:
        assert len(text) > 2 * WINDOW
        while True:
            shift = self._random.randrange(WINDOW)
            starts = list(range(shift, len(text) - WINDOW, WINDOW))
            self._random.shuffle(starts)
            yield from (text[start : start + WINDOW] for start in starts)

    def _english(self) -> str:
        draw = self._random.choice
        text = ""
        while len(text) < WINDOW:
            who, when = draw(WHO).capitalize(), draw(WHEN)
            number = self._random.randrange(2, 900)
            text += f"{who} {draw(DID)} {draw(WHAT)} {when}, and entry {number} says so. "
        return text

    def _chinese(self) -> str:
        draw, text = self._random.choice, ""
        while len(text) < WINDOW // SHARE["chinese"]:
            page = self._random.randrange(2, 900)
            text += f"{draw(时)},{draw(谁)}{draw(做)}{draw(物)},记录在第{page}页。"
        return text

    def _json(self) -> str:
        draw = self._random.choice
        rows: list[dict[str, Any]] = []
        while len(json.dumps(rows)) < WINDOW:
            rows.append(
                {
                    "id": self._random.randrange(10**9),
                    "actor": draw(WHO),
                    "item": draw(WHAT),
                    "ok": draw((True, False)),
                    "ms": round(self._random.uniform(0.1, 900), 2),
                }
            )
        return json.dumps(rows)

    def _random_words(self) -> str:
        """Words without sense, for comparison with figures of others. What drafts get accepted on
        them says nothing about real use."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        words = ("".join(self._random.choices(letters, k=5)) for _ in range(WINDOW // 6))
        return " ".join(words)


def _known(kind: str) -> str:
    return _code() if kind == "code" else packages.text_of(kind)


@cache
def _code() -> str:
    """The first megabytes of the standard library's modules, the same for one Python version."""
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(parts[-1])
        if size > CODE_BYTES:
            break
    return "\n".join(parts)
