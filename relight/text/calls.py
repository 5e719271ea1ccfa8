"""Tools → the grammar of a block of calls, so that what follows the marker is always read back as
calls with arguments that their schemas allow. Knows no request.

A tool is written *closely*, by its schema, or *loosely*: names and values of arguments are free,
and only the markup has to be right. A close call has its parameters in the order of the schema. A
parameter that may be a string stands as bare text, any other as JSON, and so do strings of which
the schema says more than a length or a choice. An object that is no plain list of parameters is
written as one JSON object, which the parser takes in place of parameters, if its tool is strict.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from relight.text.arguments import WRAPPERS
from relight.text.conversation import Tool
from relight.text.dsml import Tags
from relight.text.lark import PYTHON_STYLE, Grammar, any_of, json_value, literal, pattern, token
from relight.text.markup import read_tag
from relight.text.schema import ParameterTypes
from relight.text.shape import Parameter, Shape, Texts, shape_of, standalone, texts_of, without_text

BARE = literal('true">')
AS_JSON = literal('false">')
BEFORE_BLOCK = literal("\n\n<")
AFTER_OBJECT = literal("\n</")
ANY_NAME = pattern(r"[^\"'<>\s]{1,64}")
OTHER_NAME = pattern(r"[A-Za-z0-9_.-]{1,64}")
NO_PARAMETERS: dict[str, Any] = {"properties": {}}
"""What a tool without a schema takes: so OpenAI's protocol has it."""


class Markup(msgspec.Struct, frozen=True):
    """How a model marks calls up: its tags, and the id of the marker."""

    tags: Tags
    dsml: int


def write_calls(
    grammar: Grammar,
    markup: Markup,
    tools: Sequence[Tool],
    close: Sequence[bool],
    *,
    parallel: bool,
) -> None:
    """Adds the rule `calls`: all behind `<｜DSML｜tool_calls>` and its newline, which is calls, one
    without `parallel`, and the closing tag. `close` has for each tool whether it is written
    closely."""
    marker, tags = token(markup.dsml), markup.tags
    # The lexer looks for the longest match: what is common to tags must be a match of its own.
    opening, opened = literal(f'{tags.invoke} name="'), literal('">\n')
    calls, free = [], []
    for number, tool in enumerate(tools):
        body = _CloseTool(grammar, markup, tool, number).body() if close[number] else None
        if body is None:
            free.append(literal(tool.name))
        else:
            calls.append(f"{literal(tool.name)} {opened} {body}")
    if free:  # all names in one terminal: a parser would try each rule of thousands at every call
        _write_loose_argument(grammar, markup)
        grammar.rule("NAME", any_of(free))
        some = f"(argument+ | {literal(tags.no_arguments)})"
        calls.append(f'NAME {opened} {some} "</"')
    end = literal(tags.invoke + ">\n")
    grammar.rule("call", f'"<" {marker} {opening} ({any_of(calls)}) {marker} {end}')
    many = "+" if parallel else ""
    grammar.rule("calls", f'call{many} "</" {marker} {literal(tags.block + ">")}')


def opened_block(markup: Markup) -> str:
    """A block from the marker of its opening tag on, that marker not included."""
    return literal(markup.tags.block + ">\n") + " calls"


def whole_block(markup: Markup) -> str:
    """A block as it stands behind text or reasoning."""
    return f"{BEFORE_BLOCK} {token(markup.dsml)} {opened_block(markup)}"


def _argument(markup: Markup, name: str, values: str) -> str:
    """`name` is the grammar of an attribute, `values` what follows the next attribute's quote."""
    marker, tag = token(markup.dsml), markup.tags.parameter
    start, middle, end = literal(f'{tag} name="'), literal('" string="'), literal(f"{tag}>\n")
    return f'"<" {marker} {start} {name} {middle} ({values}) {marker} {end}'


def _bare(terminal: str) -> str:
    return f"{BARE} {terminal}"


def _as_json(value: str) -> str:
    return f'{AS_JSON} {value} "</"'


def _write_loose_argument(grammar: Grammar, markup: Markup) -> None:
    grammar.rule("ANY_NAME", ANY_NAME)
    grammar.rule("ANY_TEXT", _terminal((Texts(),)))
    values = (_bare("ANY_TEXT"), _as_json(json_value({}, PYTHON_STYLE)))
    grammar.rule("argument", _argument(markup, "ANY_NAME", any_of(values)))


class _CloseTool:
    """Writes the rules of one tool, the `number`th."""

    def __init__(self, grammar: Grammar, markup: Markup, tool: Tool, number: int) -> None:
        self._rule = grammar.rule
        self._markup = markup
        self._number = number
        self._root = NO_PARAMETERS if tool.parameters is None else tool.parameters
        self._types = ParameterTypes(self._root)
        self._strict = tool.strict

    def body(self) -> str | None:
        """What stands between the opening tag of a call and the marker of its closing one. None if
        it had to be one object, which models are not used to, and the tool is not strict."""
        shape = shape_of(self._root)
        if shape is None or not all(self._can_be_said(p.name) for p in shape.parameters):
            return f"{self._json(self._root)} {AFTER_OBJECT}" if self._strict else None
        return f'{self._arguments(shape)} "</"'

    def _can_be_said(self, name: str) -> bool:
        """Whether a parameter of this name is read back by that name."""
        text = f'{self._markup.tags.parameter} name="{name}" string="true">'
        found = read_tag(text)
        return found is not None and found[0].name == name and not found[1]

    def _arguments(self, shape: Shape) -> str:
        """Of the parameters that are not required any may be left out."""
        blank = self._markup.tags.no_arguments
        parameters = [
            (self._parameter(f"p_{self._number}_{i}", p), p.required)
            for i, p in enumerate(shape.parameters)
        ]
        others = "" if shape.extra is None else self._others(shape)
        rest = f"{others}*" if others else '""'
        some = [f"{others}+"] if others else []
        for i, (name, required) in reversed(list(enumerate(parameters))):
            some = [f"{name} {rest}"] if required else [f"{name} {rest}", *some]
            rest = self._rule(f"rest_{self._number}_{i}", f"{name}{'' if required else '?'} {rest}")
        may_be_none = not any(required for _, required in parameters)
        if not (blank and may_be_none):
            return rest
        # What is certain is masked to the longest token, where a model writes `">\n` and `\n`: so
        # the blank that is all there can be may be missing, and is never certain.
        return f"({any_of([*some, literal(blank)])})" if some else f"{literal(blank)}?"

    def _parameter(self, rule: str, parameter: Parameter) -> str:
        types = self._types.allowed(parameter.name)
        others = types is None or bool(types - {"string"})
        values = self._values(rule, parameter.schema, others)
        return self._rule(rule, _argument(self._markup, literal(parameter.name), values))

    def _others(self, shape: Shape) -> str:
        """Parameters of other names than those that are listed. One of the names that models give
        to a whole object would be taken for it."""
        taken = [parameter.name for parameter in shape.parameters] + list(WRAPPERS)
        name = self._rule(
            f"NAME_{self._number}", f"{OTHER_NAME} & ~({any_of(map(literal, taken))})"
        )
        rule = f"other_{self._number}"
        values = self._values(rule, shape.extra, True)
        return self._rule(rule, _argument(self._markup, name, values))

    def _values(self, rule: str, schema: Any, others: bool) -> str:
        """`others`: values that are no strings may be allowed."""
        texts = texts_of(schema, self._root, formats=self._strict)
        values = []
        if texts:
            values.append(_bare(self._rule(rule.upper(), _terminal(texts))))
        if not texts or others:
            values.append(_as_json(self._json(without_text(schema) if texts else schema)))
        return any_of(values)

    def _json(self, schema: Any) -> str:
        whole = standalone(schema, self._root)
        return json_value(whole, PYTHON_STYLE, lenient=not self._strict)


def _terminal(texts: Sequence[Texts]) -> str:
    """Texts and the beginning of the closing tag in one terminal: it ends with the last `</` before
    the marker, whatever a text holds."""
    choices = []
    for each in texts:
        if each.these is not None:
            choices += [literal(text + "</") for text in each.these]
        elif each.least == 0 and each.most is None:
            choices.append(pattern(r"(?s:.*)</"))
        else:
            most = "" if each.most is None else each.most
            choices.append(pattern(f"(?s:.{{{each.least},{most}}})</"))
    return any_of(dict.fromkeys(choices))
