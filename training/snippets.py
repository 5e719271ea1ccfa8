"""Short Python on request. Knows no token."""

from random import Random

from relight.ember.words import Language

ASK: dict[Language, tuple[str, ...]] = {
    "en": ("Write a Python function that {what}.", "Python: {what}.",
           "Show me Python that {what}."),
    "zh": ("写一个 Python 函数：{what}。", "用 Python {what}。", "请给出 Python 代码：{what}。"),
}  # fmt: skip

VARIABLES = ["x", "y", "a", "b", "n", "m", "items", "values", "numbers", "words", "text", "data"]

SNIPPETS: tuple[tuple[str, str, str], ...] = (
    ("adds two numbers", "把两个数相加", "def add({p}, {q}):\n    return {p} + {q}"),
    ("subtracts two numbers", "把两个数相减", "def subtract({p}, {q}):\n    return {p} - {q}"),
    ("multiplies two numbers", "把两个数相乘", "def multiply({p}, {q}):\n    return {p} * {q}"),
    ("squares a number", "求一个数的平方", "def square({p}):\n    return {p} * {p}"),
    ("doubles a number", "把一个数加倍", "def double({p}):\n    return 2 * {p}"),
    ("tests if a number is even", "判断一个数是否为偶数",
     "def is_even({p}):\n    return {p} % 2 == 0"),
    ("tests if a number is odd", "判断一个数是否为奇数",
     "def is_odd({p}):\n    return {p} % 2 == 1"),
    ("returns the larger of two numbers", "返回两个数中较大的",
     "def larger({p}, {q}):\n    return {p} if {p} > {q} else {q}"),
    ("returns the smaller of two numbers", "返回两个数中较小的",
     "def smaller({p}, {q}):\n    return {p} if {p} < {q} else {q}"),
    ("sums a list", "求列表的和",
     "def total({p}):\n    result = 0\n    for {q} in {p}:\n"
     "        result += {q}\n    return result"),
    ("finds the largest item of a list", "找出列表的最大值",
     "def largest({p}):\n    return max({p})"),
    ("reverses a string", "反转字符串", "def reverse({p}):\n    return {p}[::-1]"),
    ("counts the words of a text", "数一段文字的单词",
     "def count_words({p}):\n    return len({p}.split())"),
    ("counts a letter in a word", "数单词里的一个字母",
     "def count_letter({p}, {q}):\n    return {p}.count({q})"),
    ("prints hello", "打印 hello", 'print("hello")'),
    ("prints the numbers from 1 to 10", "打印 1 到 10",
     "for {p} in range(1, 11):\n    print({p})"),
    ("computes the factorial", "计算阶乘",
     "def factorial({p}):\n    return 1 if {p} == 0 else {p} * factorial({p} - 1)"),
    ("computes a Fibonacci number", "计算斐波那契数",
     "def fibonacci({p}):\n    return {p} if {p} < 2 else fibonacci({p} - 1) + fibonacci({p} - 2)"),
    ("returns the unique items of a list", "返回列表中不同的元素",
     "def unique({p}):\n    return sorted(set({p}))"),
    ("computes the mean of a list", "求列表的平均值",
     "def mean({p}):\n    return sum({p}) / len({p})"),
    ("makes a text upper case", "把文字变成大写", "def upper({p}):\n    return {p}.upper()"),
    ("reads a file", "读取文件",
     "def read({p}):\n    with open({p}) as file:\n        return file.read()"),
    ("swaps two values", "交换两个值", "{p}, {q} = {q}, {p}"),
    ("tests if a word is a palindrome", "判断单词是否为回文",
     "def is_palindrome({p}):\n    return {p} == {p}[::-1]"),
)  # fmt: skip


def draw_snippet(rng: Random, language: Language) -> tuple[str, str]:
    """A request and the code, fenced."""
    en, zh, code = rng.choice(SNIPPETS)
    p, q = rng.sample(VARIABLES, 2)
    what = en if language == "en" else zh
    return rng.choice(ASK[language]).format(what=what), f"```python\n{code.format(p=p, q=q)}\n```"
