"""Long filler text with keys hidden in it, and questions for them. Knows no token: the length is
steered by a counter that the caller brings."""

from collections.abc import Callable
from random import Random

import msgspec

from relight.ember.split import Split
from relight.ember.words import PLACES, THINGS, Language, key

WHO = {
    "en": ["miller", "baker", "sailor", "teacher", "farmer", "doctor", "painter", "merchant"],
    "zh": ["磨坊主", "面包师", "水手", "老师", "农夫", "医生", "画家", "商人"],
}
HOW = {
    "en": ["old", "young", "quiet", "cheerful", "tired", "careful", "clever", "friendly"],
    "zh": ["年老的", "年轻的", "安静的", "快乐的", "疲倦的", "细心的", "聪明的", "友好的"],
}
WHEN = {
    "en": ["In the morning", "At noon", "Last summer", "Every evening", "On Sunday", "Long ago"],
    "zh": ["早晨", "中午", "去年夏天", "每天傍晚", "星期天", "很久以前"],
}
SENTENCES: dict[Language, tuple[str, ...]] = {
    "en": (
        "{when}, the {how} {who} walked to the {place}.",
        "The {how} {who} sold {thing} near the {place}.",
        "{when} there was no {thing} in the {place}.",
        "The {who} asked the {how} {who2} about the {thing}.",
        "Nobody at the {place} remembered the {how} {who}.",
        "{when} the wind was cold and the {place} was empty.",
        "The {who} and the {who2} carried {thing} over the hill.",
        "It rained, so the {how} {who} stayed at the {place}.",
    ),
    "zh": (
        "{when}，{how}{who}走到了{place}。",
        "{how}{who}在{place}附近卖{thing}。",
        "{when}，{place}里没有{thing}。",
        "{who}向{how}{who2}打听{thing}的事。",
        "{place}里没有人记得{how}{who}。",
        "{when}，风很冷，{place}空无一人。",
        "{who}和{who2}把{thing}运过山去。",
        "下雨了，所以{how}{who}留在{place}。",
    ),
}
HIDE: dict[Language, tuple[str, ...]] = {
    "en": ("The key of the {place} is {key}.", "Remember: the key of the {place} is {key}."),
    "zh": ("{place}的钥匙是 {key}。", "请记住：{place}的钥匙是 {key}。"),
}
ASK: dict[Language, tuple[str, ...]] = {
    "en": (
        "What is the key of the {place}?",
        "Which key belongs to the {place}?",
        "Tell me the key of the {place}.",
    ),
    "zh": ("{place}的钥匙是什么？", "哪把钥匙属于{place}？", "请告诉我{place}的钥匙。"),
}
ANSWER: dict[Language, str] = {
    "en": "The key of the {place} is {key}.",
    "zh": "{place}的钥匙是 {key}。",
}


class Hidden(msgspec.Struct, frozen=True):
    place: str
    key: str


class Document(msgspec.Struct, frozen=True):
    text: str
    hidden: tuple[Hidden, ...]


def draw_document(
    rng: Random,
    language: Language,
    split: Split,
    length: int,
    count_tokens: Callable[[str], int],
    num_keys: int,
) -> Document:
    """About `length` tokens, never more: sentences, and keys of different places, each at a
    uniform depth."""
    places = rng.sample([pair[language == "zh"] for pair in PLACES], num_keys)
    hidden = tuple(Hidden(place, key(rng, split)) for place in places)
    space = " " if language == "en" else ""
    needles = [rng.choice(HIDE[language]).format(place=h.place, key=h.key) for h in hidden]
    left = length - sum(count_tokens(needle + space) for needle in needles)
    sentences: list[str] = []
    while True:
        sentence = filler_sentence(rng, language)
        left -= count_tokens(sentence + space)
        if left < 0:
            break
        sentences.append(sentence)
    depths = sorted(rng.randint(0, len(sentences)) for _ in needles)
    rng.shuffle(needles)
    for already, (depth, needle) in enumerate(zip(depths, needles, strict=True)):
        sentences.insert(depth + already, needle)
    return Document(space.join(sentences), hidden)


def filler_sentence(rng: Random, language: Language) -> str:
    zh = language == "zh"
    return rng.choice(SENTENCES[language]).format(
        when=rng.choice(WHEN[language]),
        how=rng.choice(HOW[language]),
        who=rng.choice(WHO[language]),
        who2=rng.choice(WHO[language]),
        place=rng.choice(PLACES)[zh],
        thing=rng.choice(THINGS)[zh],
    )


def question(rng: Random, language: Language, hidden: Hidden) -> str:
    return rng.choice(ASK[language]).format(place=hidden.place)


def answer(language: Language, hidden: Hidden) -> str:
    return ANSWER[language].format(place=hidden.place, key=hidden.key)
