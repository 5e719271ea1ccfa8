"""A model without an opinion: it draws any of the tokens that a constraint allows."""

import random
from collections.abc import Iterator
from typing import Any

from relight.base.types import Constraint
from relight.text.grammar import Vocabulary
from relight.text.tokenizer import Tokenizer

ENDING = 150
"""After so many tokens the model prefers those that come to an end."""


def ids_of(mask: bytes) -> list[int]:
    return [
        8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1
    ]


def babble(
    tokenizer: Tokenizer,
    words: Vocabulary,
    constraint: Constraint,
    rng: random.Random,
    limit: int = 600,
) -> tuple[list[int], bool]:
    """Tokens of an answer from where its grammar begins, and whether it ended by itself."""
    special = tokenizer.special
    matcher = words.compile(constraint.grammar).start()
    closing = [tokenizer.encode_text(text)[0] for text in ('"', "]", "}", "</", "\n")]
    slash = tokenizer.encode_text("/")[0]
    made: list[int] = []
    while len(made) < limit:
        mask = matcher.mask()
        assert any(mask), tokenizer.decode(made)
        late = len(made) > ENDING
        ends = [token for token in closing if is_in(mask, token)]
        alone = words.mask_of([special.eos]) == mask
        if is_in(mask, special.eos) and (late or alone or rng.random() < 0.3):
            return made, True
        if late and is_in(mask, slash) and tokenizer.decode(made[-1:]) == "<":
            token = slash
        elif is_in(mask, special.dsml) and (late or rng.random() < 0.3):
            token = special.dsml
        elif ends and (late or rng.random() < 0.2):
            token = rng.choice(ends)
        else:
            token = any_in(mask, rng, but=special.eos)
        matcher.consume(token)
        made.append(token)
    return made, False


def is_in(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> token % 8 & 1)


def any_in(mask: bytes, rng: random.Random, but: int) -> int:
    """Each with the same chance; quick if many are allowed."""
    for _ in range(64):
        token = rng.randrange(8 * len(mask))
        if is_in(mask, token) and token != but:
            return token
    return rng.choice([token for token in ids_of(mask) if token != but])


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema of what people use, and some that they should not."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "any", "union", "const"]
    kinds += ["object", "array", "ref"] * 2 if depth else []
    match rng.choice(kinds):
        case "string":
            schema: dict[str, Any] = {"type": "string"}
            if rng.random() < 0.3:
                schema["minLength"] = rng.randint(0, 3)
            if rng.random() < 0.3:
                schema["maxLength"] = schema.get("minLength", 0) + rng.randint(0, 5)
            if rng.random() < 0.2:
                schema["pattern"] = rng.choice(["^[a-c]+$", "x", "^(ab|cd){1,2}$"])
            return schema
        case "integer":
            return {
                "type": "integer",
                **({"minimum": -3, "maximum": 99} if rng.random() < 0.5 else {}),
            }
        case "enum":
            values = ["a", "b c", "</x>", "", 'q"', 3, None, True, "é\n"]
            return {"enum": rng.sample(values, rng.randint(1, 5))}
        case "const":
            return {"const": rng.choice(["k", 7, None, "<"])}
        case "any":
            return rng.choice([{}, {"description": "anything"}])
        case "union":
            kind = rng.choice([["string", "null"], ["integer", "string"], ["boolean", "null"]])
            if rng.random() < 0.5 or not depth:
                return {"type": kind}
            return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}
        case "object":
            return random_object(rng, depth - 1)
        case "array":
            return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": 3}
        case "ref":
            return {"$ref": "#/$defs/shared"}
        case simple:
            return {"type": simple}


def random_object(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    names = rng.sample(
        ["city", "days", "x y", "größe", 'a"b', "input", "to<", "arguments"], rng.randint(0, 4)
    )
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.5],
    }
    extra = rng.choice(["absent", "absent", False, True, "schema"])
    if extra != "absent":
        schema["additionalProperties"] = random_schema(rng, 1) if extra == "schema" else extra
    if rng.random() < 0.1:
        schema["minProperties"] = len(schema["required"])
    return schema


def whole(schema: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """With what it may refer to."""
    shared = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/shared"}},
    }
    return {**schema, "$defs": {"shared": shared}}


def portions(tokens: list[int], rng: random.Random) -> Iterator[list[int]]:
    at = 0
    while at < len(tokens):
        size = rng.choice([1, 2, 3, 5, 13])
        yield tokens[at : at + size]
        at += size
