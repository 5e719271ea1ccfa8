"""Tools of the protocol of items ↔ the functions that the model is told. Knows no items.

A model calls functions by one name and with JSON arguments. A tool that takes text becomes a
function of one string, `input`; a tool in a namespace gets the namespace before its name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from relight.base.errors import BadRequest, Unsupported
from relight.serve.decode import check_depth, shown
from relight.serve.responses.schema import ItemTool, ItemToolChoice
from relight.serve.schema import Function, FunctionName, FunctionTool, NamedToolChoice

DROPPED = frozenset(
    {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "local_shell",
        "image_generation",
        "mcp",
        "file_search",
        "code_interpreter",
        "tool_search",
    }
)
"""Tools that a server would run, and this one has not: agents name them by habit and go on without.
A call of one can then not come."""

_TEXT_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Exposed:
    """What a function is to the client."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(slots=True)
class Tools:
    """`functions` are told to the model, each from its place in the body; `by_name` finds what the
    client calls it. `dropped` are the types that were."""

    functions: list[FunctionTool] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    by_name: dict[str, Exposed] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def exposed(self, name: str) -> Exposed:
        """A name that the model made up stays what it is."""
        return self.by_name.get(name) or Exposed(name)


def function_name(name: str, namespace: str | None) -> str:
    return f"{namespace}__{name}" if namespace else name


def text_of(arguments: str) -> str:
    """The text for a tool that takes text. What misses the form reaches it as it is."""
    try:
        found = msgspec.json.decode(arguments, type=dict[str, object]).get("input")
    except msgspec.MsgspecError:
        return arguments
    return found if isinstance(found, str) else arguments


def read_tools(tools: Sequence[ItemTool]) -> Tools:
    """Raises `BadRequest` and `Unsupported` by the place of the tool."""
    found = Tools()
    for place, tool, namespace in _flat(tools, "tools", None):
        # All of a tool is told back in the answer, also what is not read.
        check_depth(tool.parameters, f"{place}.parameters")
        check_depth(tool.format, f"{place}.format")
        if tool.type in DROPPED:
            found.dropped.append(tool.type)
            continue
        if tool.type not in ("function", "custom"):
            raise Unsupported(
                f"{place} is of type {shown(tool.type)}, which is not built; send a function",
                param=place,
            )
        if not tool.name:
            raise BadRequest(f"{place}.name is missing; name the tool", param=f"{place}.name")
        name = function_name(tool.name, namespace)
        found.functions.append(FunctionTool(function=_function(tool, name, place)))
        found.places.append(place)
        found.by_name.setdefault(name, Exposed(tool.name, namespace, tool.type == "custom"))
    return found


def read_choice(choice: str | ItemToolChoice | None) -> str | NamedToolChoice | None:
    if not isinstance(choice, ItemToolChoice):
        return choice
    if choice.type not in ("function", "custom"):
        return NamedToolChoice(type=choice.type)  # where it is known or refused by its type
    if not choice.name:
        raise BadRequest("tool_choice.name is missing; name the tool", param="tool_choice.name")
    name = function_name(choice.name, choice.namespace)
    return NamedToolChoice(type="function", function=FunctionName(name=name))


def _flat(
    tools: Sequence[ItemTool], where: str, namespace: str | None
) -> Iterator[tuple[str, ItemTool, str | None]]:
    for i, tool in enumerate(tools):
        place = f"{where}[{i}]"
        if tool.type != "namespace" or namespace is not None:
            yield place, tool, namespace
            continue
        if not tool.name:
            raise BadRequest(f"{place}.name is missing; name it", param=f"{place}.name")
        yield from _flat(tool.tools or (), f"{place}.tools", tool.name)


def _function(tool: ItemTool, name: str, place: str) -> Function:
    if tool.type == "function":
        return Function(
            name=name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
    # The grammar of this one is also in its description, and models know the tool.
    if (tool.format or {}).get("type", "text") != "text" and tool.name != "apply_patch":
        raise Unsupported(
            f"{place}.format asks for text by a grammar, which is not built for custom tools; "
            "leave it out, or send a function",
            param=f"{place}.format",
        )
    return Function(name=name, description=tool.description, parameters=_TEXT_INPUT)
