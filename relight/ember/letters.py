"""Counting a letter in a word: the word is spelt with a running count behind each hit."""

from random import Random

import msgspec

from relight.ember.split import Split, split_of
from relight.ember.words import Language, spelling_word

ASK: dict[Language, tuple[str, ...]] = {
    "en": (
        'How many times does the letter {letter} occur in "{word}"?',
        'How many {letter} are in the word "{word}"?',
        'Count the letter {letter} in "{word}".',
        "How often is the letter {letter} in {word}?",
    ),
    "zh": (
        "单词 {word} 里有几个字母 {letter}？",
        "“{word}”中字母 {letter} 出现了几次？",
        "数一数 {word} 里的字母 {letter}。",
        "{word} 这个词有多少个 {letter}？",
    ),
}
ANSWER: dict[Language, str] = {
    "en": "The letter {letter} occurs {count} time{s}.",
    "zh": "字母 {letter} 出现了 {count} 次。",
}


class Count(msgspec.Struct, frozen=True):
    word: str
    letter: str

    @property
    def result(self) -> int:
        return self.word.count(self.letter)


def draw_count(rng: Random, split: Split) -> Count:
    """Held out are made-up words, and pairs of a real word and a letter. The letter is in the word
    three times in four."""
    while True:
        word, real = spelling_word(rng, split)
        letters = word if rng.random() < 0.75 else "abcdefghijklmnopqrstuvwxyz"
        count = Count(word, rng.choice(letters))
        if not real or split_of("letter", f"{count.letter} {word}") == split:
            return count


def question(rng: Random, language: Language, task: Count) -> str:
    return rng.choice(ASK[language]).format(letter=task.letter, word=task.word)


def answer(language: Language, task: Count) -> str:
    plural = "" if task.result == 1 else "s"
    return ANSWER[language].format(letter=task.letter, count=task.result, s=plural)


def spelt(task: Count) -> str:
    """`s t r1 a w b e r2 r3 y`: the count so far stands behind each hit."""
    written, count = [], 0
    for letter in task.word:
        count += letter == task.letter
        written.append(f"{letter}{count}" if letter == task.letter else letter)
    return " ".join(written)


def worked_answer(language: Language, task: Count) -> str:
    return f"{spelt(task)}. {answer(language, task)}"
