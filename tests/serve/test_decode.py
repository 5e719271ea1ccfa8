import msgspec
import pytest

from relight.base.errors import BadRequest, Unsupported
from relight.serve.decode import check_depth, decode
from relight.serve.fields import (
    CHAT_REFUSED,
    COMPLETION_REFUSED,
    IGNORED,
    NOTHING_REFUSED,
    Refused,
)
from relight.serve.messages.schema import MessagesCall
from relight.serve.schema import ChatCall, CompletionCall, DetokenizeCall

MESSAGES = b'"messages": [{"role": "user", "content": "Hi"}]'


def read(fields: str, *, strict: bool = False) -> tuple[str, ...]:
    body = b"{" + MESSAGES + fields.encode() + b"}"
    return decode(body, ChatCall, CHAT_REFUSED, strict=strict).ignored


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": NaN}',
        b'{"messages": []}x',
        b"\xff\xfe",
        b'{"messages": "\xff"}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800 and more"}]}',
        b'{"messages": [{"role": "user", "content": "\\udc00"}]}',
        b'{"\\ud800": 1}',
        b'{"x": ' + b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
        b"[]",
        b"null",
        b"17",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_body_of_any_bad_shape_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(body, ChatCall, CHAT_REFUSED)
    assert caught.value.status == 400
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (', "temperature": "hot"', "temperature", 'must be number or null, found "hot"'),
        (', "temperature": 3', "temperature", "must be number <= 2.0, found 3"),
        (', "top_p": 0', "top_p", "must be number > 0.0, found 0"),
        (', "max_tokens": 0', "max_tokens", "must be integer >= 1, found 0"),
        (', "max_tokens": 1.5', "max_tokens", "must be integer or null, found 1.5"),
        (', "stop": ""', "stop", 'must be string of length >= 1, found ""'),
        (', "stop": ["a", ""]', "stop[1]", 'must be string of length >= 1, found ""'),
        (', "stop": ["a", 1]', "stop[1]", "must be string, found 1"),
        (', "seed": 9223372036854775808', "seed", "must be integer <= 9223372036854775807"),
        (', "stream": "yes"', "stream", 'must be boolean or null, found "yes"'),
        (', "tools": [{"function": {}}]', "tools[0].function.name", "is required and missing"),
        (', "min_p": 1e999', "min_p", "Number out of range"),
        (', "logit_bias": {"x": 1}', "logit_bias", "logit_bias must be integer, found {"),
        (', "logit_bias": {"-1": 1}', "logit_bias", "every key of logit_bias must be integer >= 0"),
        (
            ', "logit_bias": {"1": 101}',
            "logit_bias",
            'every value of logit_bias must be number <= 100.0, found {"1":101}',
        ),
        (', "structured_outputs": {"xml": 1}', "structured_outputs.xml", "is not known here"),
    ],
)
def test_a_wrong_value_is_told_by_field_value_and_limit(
    fields: str, param: str, message: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read(fields)
    assert caught.value.param == param
    assert param in caught.value.message
    assert message in caught.value.message


@pytest.mark.parametrize(
    "half", [r"\ud83d", r"\ude00", r"\ud83d and", r"\ud83d\u0041", r"\\\uDBFF", r"\ud83d\ud83d"]
)
def test_half_of_a_surrogate_pair_is_told_by_field_and_remedy(half: str) -> None:
    content = r"\\ud83d \ud83d\ude00 " + half
    body = '{"messages": [{"role": "user", "content": "' + content + '"}, 1]}'
    with pytest.raises(BadRequest) as caught:
        decode(body.encode(), ChatCall, CHAT_REFUSED)
    assert caught.value.param == "messages[0].content"
    first = "\\" + half.lstrip("\\")[:5]
    start = f"messages[0].content has half of a surrogate pair, {first} at byte "
    assert caught.value.message.startswith(start)
    assert "send whole characters" in caught.value.message


@pytest.mark.parametrize("body", [rb'{"\ud83d": 1}', rb'{"a": "\ud83d'])
def test_half_of_a_pair_that_has_no_place_is_told_of_the_body(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^the body has half of a surrogate pair"):
        decode(body, ChatCall, CHAT_REFUSED)


@pytest.mark.parametrize("body", [rb'{"a": "\\ud83d', rb'{"a": "\ud83d\ude00'])
def test_a_body_cut_off_behind_whole_characters_is_told_as_cut_off(body: bytes) -> None:
    with pytest.raises(BadRequest, match="truncated"):
        decode(body, ChatCall, CHAT_REFUSED)


def test_missing_messages_are_named() -> None:
    with pytest.raises(BadRequest, match="messages is required and missing; add it"):
        decode(b"{}", ChatCall, CHAT_REFUSED)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(BadRequest) as caught:
        read(f', "temperature": "{"x" * 10_000}"')
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("kind", "table", "base"),
    [
        (ChatCall, CHAT_REFUSED, MESSAGES),
        (CompletionCall, COMPLETION_REFUSED, b'"prompt": "x"'),
    ],
)
def test_every_unbuilt_field_is_refused_by_name_and_its_neutral_values_are_not(
    kind: type[ChatCall] | type[CompletionCall], table: dict[str, Refused], base: bytes
) -> None:
    for name, rule in table.items():
        for neutral in (None, *rule.neutral):
            body = b"{" + base + b', "%s": ' % name.encode() + msgspec.json.encode(neutral) + b"}"
            assert decode(body, kind, table, strict=True).ignored == ()
        body = b"{" + base + b', "%s": {"asks": ["something"]}}' % name.encode()
        with pytest.raises(Unsupported) as caught:
            decode(body, kind, table)
        assert caught.value.param == name
        assert caught.value.code == "unsupported_parameter"
        assert caught.value.message.startswith(f"{name} is not supported here: found ")


@pytest.mark.parametrize("value", ["2", "true", '"1"', "[1]", "0"])
def test_a_neutral_value_counts_with_its_type(value: str) -> None:
    with pytest.raises(Unsupported, match="best_of is not supported here"):
        read(f', "best_of": {value}')


@pytest.mark.parametrize("value", ["1", "1.0", "null"])
def test_a_number_is_neutral_in_any_spelling(value: str) -> None:
    assert read(f', "best_of": {value}') == ()


@pytest.mark.parametrize("name", [*sorted(IGNORED), "no_such_field"])
def test_ignored_fields_are_reported_and_refused_when_strict(name: str) -> None:
    assert read(f', "{name}": "x", "zz": 1') == tuple(sorted((name, "zz")))
    with pytest.raises(Unsupported) as caught:
        read(f', "{name}": "x"', strict=True)
    assert caught.value.param == name


PLACES = [
    ("messages.x", {"role": "user", "content": "Hi", "x": 1}, None),
    (
        "messages.tool_calls.x",
        {"role": "assistant", "tool_calls": [{"x": 1, "id": "a", "function": {"name": "f"}}]},
        None,
    ),
    (
        "messages.tool_calls.function.x",
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "x": 1}}]},
        None,
    ),
    ("tools.x", None, {"type": "function", "function": {"name": "f"}, "x": 1}),
    ("tools.function.x", None, {"type": "function", "function": {"name": "f", "x": 1}}),
]


@pytest.mark.parametrize("space", [b"", b" \n"])
@pytest.mark.parametrize(("name", "message", "tool"), PLACES)
def test_what_elements_of_lists_do_not_know_is_ignored_as_fields_are(
    name: str, message: object, tool: object, space: bytes
) -> None:
    fields = {"messages": [message] * 2 if message else [], "tools": [tool] * 2 if tool else []}
    body = msgspec.json.format(msgspec.json.encode(fields), indent=len(space))
    assert decode(body, ChatCall, CHAT_REFUSED).ignored == (name,)
    with pytest.raises(Unsupported) as caught:
        decode(body, ChatCall, CHAT_REFUSED, strict=True)
    assert caught.value.param == name
    nothing = body.replace(b'"x": 1', b'"x": null').replace(b'"x":1', b'"x":null')
    assert nothing != body
    assert decode(nothing, ChatCall, CHAT_REFUSED, strict=True).ignored == ()


def test_structs_nest_to_a_bound() -> None:
    body = b'{"messages": [{"role": "user", "content": %s}]}'
    content = b'"x"'
    for _ in range(20):
        content = b'[{"type": "tool_result", "content": %s}]' % content
    with pytest.raises(BadRequest, match="nests too deeply"):
        decode(body % content, MessagesCall, NOTHING_REFUSED)


def test_a_null_field_is_not_reported() -> None:
    assert read(', "user": null', strict=True) == ()


def test_a_name_that_a_header_cannot_carry_is_not_repeated() -> None:
    assert read(r', "evil\r\nset-cookie: a": 1') == ("?",)
    assert read(', "ключ": 1') == ("?",)


def test_a_field_that_is_given_twice_counts_once() -> None:
    body = b'{"tokens": [1], "tokens": [2]}'
    assert decode(body, DetokenizeCall, NOTHING_REFUSED).call.tokens == [2]


def test_depth_is_bounded_without_recursion() -> None:
    value: object = 1
    for _ in range(64):
        value = [value]
    check_depth(value, "field")
    for _ in range(100_000):
        value = {"a": value}
    with pytest.raises(BadRequest, match="field nests deeper than 64 levels"):
        check_depth(value, "field")
    while isinstance(value, dict):  # freed level by level: the interpreter would recurse
        value = value["a"]
