"""The OpenAPI document, made from the table of operations and the schema. Knows no server."""

from collections.abc import Sequence
from typing import Any

import msgspec

import relight
from relight.serve.routes import Operation

Json = dict[str, Any]


def document(operations: Sequence[Operation], root_path: str = "") -> bytes:
    types = {
        kind
        for operation in operations
        for kind in (operation.call, operation.reply, operation.chunk, operation.error)
        if kind is not None
    }
    names = sorted(types, key=str)
    references, components = msgspec.json.schema_components(
        names, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(names, references, strict=True))
    paths: dict[str, Json] = {}
    for operation in operations:
        path = operation.path.replace(":path}", "}")
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schemas)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Relight", "version": relight.__version__},
            "servers": [{"url": root_path or "/"}],
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _operation(operation: Operation, schemas: dict[Any, Json]) -> Json:
    content: Json = {"text/plain": {}}
    if operation.reply:
        content = _json(schemas[operation.reply])
    if operation.chunk:
        content["text/event-stream"] = {"schema": schemas[operation.chunk]}
    document: Json = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error.", "content": _json(schemas[operation.error])},
        },
    }
    if operation.call:
        document["requestBody"] = {"required": True, "content": _json(schemas[operation.call])}
    if "{name" in operation.path:
        parameter = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        document["parameters"] = [parameter]
    return document


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}
