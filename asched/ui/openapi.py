"""The OpenAPI document of the API, generated from its routes and structs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from asched import __version__
from asched.ui.api import PREFIX, ROUTES
from asched.ui.errors import ErrorAnswer
from asched.ui.questions import ApiRoute, Parameter

_REF: Final = "#/components/schemas/{name}"
_FORMAT: Final = Parameter("format", "`csv` for the table in the answer. Default: `json`.")


def openapi() -> dict[str, Any]:
    """OpenAPI 3.1."""
    types: list[type] = [*(route.answers for route in ROUTES.values()), ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    references = dict(zip(types, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "asched",
            "version": __version__,
            "description": "Questions about a journal. All answers are read-only.",
        },
        "paths": {
            PREFIX + route.path: {"get": _operation(name, route, references)}
            for name, route in ROUTES.items()
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


class Operation(NamedTuple):
    """A request that is not among the questions of the API."""

    method: str
    path: str
    summary: str
    answers: type[msgspec.Struct]
    accepts: type[msgspec.Struct] | None = None
    """The JSON body; None without one."""


def describe(document: dict[str, Any], operations: Iterable[Operation]) -> None:
    """Add operations to the document."""
    listed = [*operations]
    types: list[type] = [one.answers for one in listed]
    types += [one.accepts for one in listed if one.accepts is not None]
    types.append(ErrorAnswer)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    references = dict(zip(types, schemas, strict=True))
    document["components"]["schemas"].update(components)
    for one in listed:
        parameters = [*map(_path_parameter, re.findall(r"{(\w+)}", one.path))]
        found = {
            "operationId": re.sub(r"\W+", "-", f"{one.method}{one.path}").strip("-"),
            "summary": one.summary,
            "parameters": parameters,
            "responses": _responses(references[one.answers], references[ErrorAnswer]),
        }
        if one.accepts is not None:
            body = {"application/json": {"schema": references[one.accepts]}}
            found["requestBody"] = {"required": True, "content": body}
        document["paths"].setdefault(PREFIX + one.path, {})[one.method] = found


def _responses(answer: Any, error: Any) -> dict[str, Any]:
    def content(schema: Any) -> dict[str, Any]:
        return {"application/json": {"schema": schema}}

    return {
        "200": {"description": "The answer.", "content": content(answer)},
        "default": {"description": "What is wrong.", "content": content(error)},
    }


def _operation(name: str, route: ApiRoute, references: dict[type, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": references[route.answers]}}
    parameters = [_parameter(parameter) for parameter in route.parameters]
    if route.rows is not None:
        content["text/csv"] = {"schema": {"type": "string"}}
        parameters.append(_parameter(_FORMAT))
    error = {"application/json": {"schema": references[ErrorAnswer]}}
    return {
        "operationId": name,
        "summary": route.summary,
        **({} if route.scope is None else {"description": f"For {route.scope.value}."}),
        "parameters": [*map(_path_parameter, re.findall(r"{(\w+)}", route.path)), *parameters],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "What is wrong.", "content": error},
        },
    }


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "integer"} if name in ("attempt", "record") else {"type": "string"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": parameter.kind}
    description = parameter.summary
    return {"name": parameter.name, "in": "query", "description": description, "schema": schema}
