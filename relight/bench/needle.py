"""Things to hide in a long text and to be asked for, by kind, and what an answer scores. Knows no
prompt and no tokens.

The kinds are those of RULER (Hsieh et al. 2024), in words of our own: one number; one number among
others that look like it; several numbers of one name; a chain of names that stand for one number;
the words that occur most often.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, get_args

import msgspec

Kind = Literal["single", "keys", "values", "chain", "words"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WORDS = (
    "amber",
    "basalt",
    "cedar",
    "dahlia",
    "ember",
    "fjord",
    "garnet",
    "harbor",
    "indigo",
    "juniper",
    "kestrel",
    "lantern",
    "maple",
    "nectar",
    "opal",
)
OTHERS = 6
"""Lines that look like the wanted one, of `keys`."""
VALUES = 4
LINKS = 4
COMMON, RARE = (3, 30), (12, 3)
"""(words, times each) of `words`: what is asked for occurs ten times as often as the rest."""


class Needle(msgspec.Struct, frozen=True):
    """`lines` are (depth from 0 to 1, text); the depth of the wanted line is `depth`, or of its
    first. An answer must hold all `answers`."""

    kind: Kind
    depth: float
    lines: tuple[tuple[float, str], ...]
    question: str
    answers: tuple[str, ...]


def hide(kind: Kind, depth: float | None, draw: random.Random) -> Needle:
    """`depth` None: anywhere."""
    place = draw.random() if depth is None else depth
    return _MAKERS[kind](place, draw)


def score(answers: Sequence[str], text: str) -> float:
    """The share of the answers that stand in the text, letter for letter."""
    return sum(answer in text for answer in answers) / len(answers)


def insert(text: str, needle: Needle) -> str:
    """The text with the lines at their depths, between two lines of it where there is one near."""
    for depth, line in sorted(needle.lines, reverse=True):
        place = int(depth * len(text))
        gap = text.find("\n", place, place + 200)
        place = place if gap < 0 else gap
        text = f"{text[:place]}\n{line}\n{text[place:]}"
    return text


def _number(draw: random.Random) -> str:
    return str(draw.randrange(10**6, 10**7))


def _vault(vault: int, number: str) -> str:
    return f"The number of the vault {vault} is {number}."


def _single(depth: float, draw: random.Random) -> Needle:
    vault, number = draw.randrange(100, 999), _number(draw)
    question = (
        f"The text above holds one line with the number of the vault {vault}. What is it? "
        "Answer with the number."
    )
    return Needle("single", depth, ((depth, _vault(vault, number)),), question, (number,))


def _keys(depth: float, draw: random.Random) -> Needle:
    vaults = draw.sample(range(100, 999), OTHERS + 1)
    numbers = [_number(draw) for _ in vaults]
    depths = [depth, *(draw.random() for _ in range(OTHERS))]
    lines = tuple((at, _vault(v, n)) for at, v, n in zip(depths, vaults, numbers, strict=True))
    question = (
        f"The text above tells the numbers of several vaults. What is the number of the vault "
        f"{vaults[0]}? Answer with the number."
    )
    return Needle("keys", depth, lines, question, (numbers[0],))


def _values(depth: float, draw: random.Random) -> Needle:
    vault = draw.randrange(100, 999)
    numbers = tuple(_number(draw) for _ in range(VALUES))
    depths = [depth, *(draw.random() for _ in range(VALUES - 1))]
    lines = tuple((at, _vault(vault, n)) for at, n in zip(depths, numbers, strict=True))
    question = (
        f"The text above tells {VALUES} numbers of the vault {vault}, in {VALUES} lines. Answer "
        "with all of them."
    )
    return Needle("values", depth, lines, question, numbers)


def _chain(depth: float, draw: random.Random) -> Needle:
    """Each name is given by the one before it, from the wanted depth to the end."""
    names, number = [word.upper() for word in draw.sample(WORDS, LINKS)], _number(draw)
    depths = sorted([depth, *(depth + (1 - depth) * draw.random() for _ in range(LINKS - 1))])
    said = [f"{names[0]} = {number}"]
    said += [f"{name} = {before}" for before, name in pairwise(names)]
    lines = tuple((at, f"Let {one}.") for at, one in zip(depths, said, strict=True))
    question = (
        f"The text above has lines that begin with Let. Which names stand for {number}, by "
        "whatever way? Answer with all the names."
    )
    return Needle("chain", depth, lines, question, tuple(names))


def _words(depth: float, draw: random.Random) -> Needle:
    """Spread over the whole text: there is no one depth."""
    (common, often), (rare, seldom) = COMMON, RARE
    chosen = draw.sample(WORDS, common + rare)
    bag = [word for word in chosen[:common] for _ in range(often)]
    bag += [word for word in chosen[common:] for _ in range(seldom)]
    lines = tuple((draw.random(), f"Tally: {word}.") for word in bag)
    question = (
        f"The text above has lines that begin with Tally. Which {common} words do they name most "
        "often? Answer with the words."
    )
    return Needle("words", depth, lines, question, tuple(chosen[:common]))


_MAKERS: dict[Kind, Callable[[float, random.Random], Needle]] = {
    "single": _single,
    "keys": _keys,
    "values": _values,
    "chain": _chain,
    "words": _words,
}
