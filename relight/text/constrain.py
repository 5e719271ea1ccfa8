"""What a request asks of the form of its answer → a constraint on the answer's tokens. Knows no
request of the wire, and not whether a grammar compiles.

Formats hold for content, so behind `</think>`; so do calls that are forced. Calls that the model
may make hold from the marker on, wherever a tag opens.
"""

import json
from typing import Any, Literal

import msgspec
from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from relight.base.errors import BadRequest, Unsupported
from relight.base.types import Constraint
from relight.text.calls import Markup, opened_block, whole_block, write_calls
from relight.text.conversation import Conversation, Start, Tool
from relight.text.lark import ANY_STYLE, COMPACT_STYLE, Grammar, any_of, json_value, literal
from relight.text.tokenizer import SpecialTokens

PLAIN_NAMES = 200_000
"""Characters of names that compile for certain; all tools of a client have some hundred."""

FormatKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an answer's text. `value` is a schema, an expression, a list of texts, or a
    grammar in Lark or GBNF. `param` is the field that asks for it. Unless `exact`, a schema is
    followed as far as it can be. `compact`: JSON has no blanks between its parts."""

    kind: FormatKind
    value: Any = None
    param: str = "response_format"
    exact: bool = True
    compact: bool = False


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides the form of an answer. `start` is where it begins; `forced`: it must call
    one of the tools."""

    start: Start | Literal["raw"]
    format: Format | None = None
    tools: tuple[Tool, ...] = ()
    forced: bool = False
    parallel: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether nothing of a client is in its grammar but the names of tools: it does compile."""
        plain = self.format is None or self.format.kind == "json_object"
        few = sum(len(tool.name) for tool in self.tools) < PLAIN_NAMES
        return plain and few and not self.forced and not any(tool.strict for tool in self.tools)

    @classmethod
    def of(
        cls,
        conversation: Conversation,
        format: Format | None,
        start: Start,
        *,
        continued: bool,
        parallel: bool,
    ) -> "Wanted":
        """`continued`: it begins behind text of the client. Raises `Unsupported` for what cannot be
        combined."""
        forced = conversation.tool_choice == "required"
        tools = conversation.usable_tools
        if conversation.forced_tool is not None:
            tools = tuple(tool for tool in tools if tool.name == conversation.forced_tool)
        if format and start == "content" and continued:
            raise Unsupported(
                f"{format.param} is not supported where an answer goes on with text of yours; "
                "leave one of the two out",
                param=format.param,
            )
        if format and forced:
            raise Unsupported(
                f"{format.param} says what the answer is and tool_choice that it is a call; leave "
                "one of the two out",
                param=format.param,
            )
        return cls(
            start=start,
            format=format,
            tools=tools,
            forced=forced,
            parallel=parallel,
        )


class Suspect(msgspec.Struct, frozen=True):
    """A part of a request that may be why its grammar does not compile: what it is, its field, and
    a grammar for it alone."""

    what: str
    param: str
    grammar: str


def constraints(wanted: Wanted, markup: Markup, special: SpecialTokens) -> list[Constraint]:
    """The first of them that compiles is what the request asks for; if there are none, it asks for
    nothing. A tool that is forced follows its schema, if that compiles; a strict one does in any
    case. Raises `BadRequest` for a format that is none."""
    tools, format = wanted.tools, wanted.format
    if not tools:
        return [_later(wanted, special, _text(wanted, markup, []))] if format else []
    strict = [tool.strict for tool in tools]
    if not wanted.forced and not format:
        grammar = Grammar()
        grammar.rule("start", opened_block(markup))
        write_calls(grammar, markup, tools, strict, parallel=wanted.parallel)
        text = grammar.text()
        return [Constraint(grammar=text, after=special.dsml, opens_tag=True)]
    wishes = [[True] * len(tools), strict] if wanted.forced else [strict]
    texts = dict.fromkeys(_text(wanted, markup, close) for close in wishes)
    return [_later(wanted, special, text) for text in texts]


def suspects(wanted: Wanted, markup: Markup) -> list[Suspect]:
    """What to look at if none of the constraints compiles."""
    found = []
    if wanted.format:
        alone = msgspec.structs.replace(wanted, tools=())
        param = wanted.format.param
        found.append(Suspect(param, param, _text(alone, markup, [])))
    for number, tool in enumerate(wanted.tools):
        if tool.strict:
            alone = msgspec.structs.replace(wanted, tools=(tool,), format=None, forced=True)
            text = _text(alone, markup, [True])
            param = f"tools[{number}]"
            found.append(Suspect(f"{param}, the schema of {tool.name},", param, text))
    return found


def _later(wanted: Wanted, special: SpecialTokens, text: str) -> Constraint:
    """A grammar of content."""
    if wanted.start != "reasoning":
        return Constraint(grammar=text)
    # Neither an end nor a call in the middle of reasoning: there would be no content.
    banned = (special.eos, special.dsml)
    return Constraint(grammar=text, after=special.think_close, banned=banned)


def _text(wanted: Wanted, markup: Markup, close: list[bool]) -> str:
    grammar = Grammar()
    block = "calls" if wanted.start == "tools" else whole_block(markup)
    format = wanted.format
    choices = (["answer"] if format else []) + ([block] if wanted.tools else [])
    grammar.rule("start", any_of(choices))
    if wanted.tools:
        write_calls(grammar, markup, wanted.tools, close, parallel=wanted.parallel)
    if format is None:
        return grammar.text()
    if format.kind == "grammar":
        return _with_client_grammar(grammar, format)
    _write_answer(grammar, format)
    return grammar.text()


def _write_answer(grammar: Grammar, format: Format) -> None:
    value = format.value
    style = COMPACT_STYLE if format.compact else ANY_STYLE
    match format.kind:
        case "json_object":
            body = json_value({"type": "object"}, style)
        case "json_schema":
            if not isinstance(value, dict | bool):
                raise BadRequest(
                    f"{format.param} must be a JSON schema, which is an object", param=format.param
                )
            body = json_value(value, style, lenient=not format.exact)
        case "regex":
            digits = "d"  # `\d` is a digit of ASCII
            body = grammar.rule("ANSWER", f"/{regex_to_lark(value, digits)}/")
        case _:
            body = grammar.rule("ANSWER", any_of(map(literal, value)))
    grammar.rule("answer", body)


def _with_client_grammar(grammar: Grammar, format: Format) -> str:
    """The client's rules in a grammar of their own, so that no name is taken twice."""
    grammar.rule("answer", "@client")
    client = {"name": "client", "lark_grammar": _as_lark(format)}
    return json.dumps({"grammars": [{"lark_grammar": grammar.text()}, client]})


def _as_lark(format: Format) -> str:
    try:
        return str(any_to_lark(format.value))
    except Exception as error:  # whatever its parser meets
        raise BadRequest(
            f"{format.param} is neither Lark nor GBNF: {error}; correct the grammar",
            param=format.param,
        ) from None
