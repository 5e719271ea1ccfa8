"""Sums, differences and products: the question, the columns from the right, the answer.

Columns make each step a look-up of three small numbers; the carry is in the step before.
"""

from random import Random
from typing import Literal

import msgspec

from relight.ember.split import Split, split_of
from relight.ember.words import Language

Operator = Literal["+", "-", "×"]

ASK: dict[Language, dict[Operator, tuple[str, ...]]] = {
    "en": {
        "+": ("What is {a} + {b}?", "Calculate {a} + {b}.", "{a} + {b} = ?", "{a}+{b}",
              "How much is {a} plus {b}?", "Please add {a} and {b}.",
              "What is the sum of {a} and {b}?"),
        "-": ("What is {a} - {b}?", "Calculate {a} - {b}.", "{a} - {b} = ?", "{a}-{b}",
              "How much is {a} minus {b}?", "Please work out {a} minus {b}.",
              "What is the difference of {a} and {b}?"),
        "×": ("What is {a} × {b}?", "Calculate {a} * {b}.", "{a} × {b} = ?", "{a}*{b}",
              "How much is {a} times {b}?", "Please multiply {a} by {b}.",
              "What is the product of {a} and {b}?"),
    },
    "zh": {
        "+": ("{a} + {b} 等于多少？", "计算 {a} + {b}。", "{a} + {b} = ?", "{a}+{b}",
              "{a} 加 {b} 是多少？", "请把 {a} 和 {b} 相加。", "{a} 与 {b} 的和是多少？"),
        "-": ("{a} - {b} 等于多少？", "计算 {a} - {b}。", "{a} - {b} = ?", "{a}-{b}",
              "{a} 减 {b} 是多少？", "请算出 {a} 减去 {b}。", "{a} 与 {b} 的差是多少？"),
        "×": ("{a} × {b} 等于多少？", "计算 {a} * {b}。", "{a} × {b} = ?", "{a}*{b}",
              "{a} 乘 {b} 是多少？", "请算出 {a} 乘以 {b}。", "{a} 与 {b} 的积是多少？"),
    },
}  # fmt: skip

WORK = {"en": "From the right: {steps}. So {sum}", "zh": "从右起：{steps}。所以 {sum}"}
ANSWER = {"en": "{a} {op} {b} = {result}.", "zh": "{a} {op} {b} = {result}。"}


class Sum(msgspec.Struct, frozen=True):
    a: int
    op: Operator
    b: int

    @property
    def result(self) -> int:
        if self.op == "+":
            return self.a + self.b
        return self.a - self.b if self.op == "-" else self.a * self.b


def draw_sum(rng: Random, split: Split) -> Sum:
    """Operands of 1 to 4 digits, each length as likely; differences are never negative; one factor
    has one digit and stands second."""
    while True:
        op: Operator = rng.choice(("+", "-", "×"))
        a = _number(rng, rng.randint(1, 4))
        b = _number(rng, 1 if op == "×" else rng.randint(1, 4))
        if op == "-" and a < b:
            a, b = b, a
        if split_of("sum", f"{a}{op}{b}") == split:
            return Sum(a, op, b)


def _number(rng: Random, digits: int) -> int:
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def question(rng: Random, language: Language, task: Sum) -> str:
    return rng.choice(ASK[language][task.op]).format(a=task.a, b=task.b)


def answer(language: Language, task: Sum) -> str:
    return ANSWER[language].format(a=task.a, op=task.op, b=task.b, result=task.result)


def steps(task: Sum, *, full: bool) -> str:
    """The columns from the right, with their terms if `full`: digit, digit, carry."""
    written, carry = [], 0
    a, b = _digits(task.a), _digits(task.b)
    width = len(a) if task.op == "×" else max(len(a), len(b))
    for i in range(width):
        x = a[i] if i < len(a) else 0
        y = b[0] if task.op == "×" else b[i] if i < len(b) else 0
        if task.op == "-":
            value = x - y - carry
            terms, carry = f"{x}-{y}-{carry}", int(value < 0)
        else:
            value = (x * y if task.op == "×" else x + y) + carry
            terms, carry = f"{x}{task.op}{y}+{carry}", value // 10
        written.append(f"{terms}={value}" if full else str(value))
    return ", ".join(written)


def _digits(number: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number))]


def worked_answer(language: Language, task: Sum) -> str:
    """What is said without thinking."""
    return WORK[language].format(steps=steps(task, full=False), sum=answer(language, task))


def thought(language: Language, task: Sum) -> str:
    """What is thought; the answer is then given alone."""
    return WORK[language].format(steps=steps(task, full=True), sum=answer(language, task))
