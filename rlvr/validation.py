"""Turns plain mappings (YAML, shell overrides, a caller's dictionary) into typed option dataclasses.

Options are standard dataclasses whose fields carry a one-line meaning under them; pydantic checks types and ranges.
Unknown keys are refused, and every error names the key, the value and the mend.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import json
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlvr.errors import ConfigError

T = TypeVar("T")

# Set on each options dataclass as __pydantic_config__: no silent coercion ("3" is not 3), no unknown key.
STRICT = ConfigDict(extra="forbid", strict=True)


def validate(options: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Builds `options` from `values`.

    Args:
        options: a dataclass with `__pydantic_config__ = STRICT`.
        values: nested mapping with the dataclass's keys; missing keys take their defaults.
        prefix: dotted name put before each key in an error (`objective`).

    Raises:
        ConfigError: the first wrong key, type or range.
    """
    try:
        # As JSON: strict validation of Python objects would refuse a mapping where a dataclass is meant.
        checked: T = _adapter(cast(type, options)).validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        raise _as_config_error(options, error, prefix) from None
    return checked


@cache
def _adapter(options: type) -> TypeAdapter[Any]:
    return TypeAdapter(options)  # builds its validator anew each time: 20 ms for an objective


def _as_config_error(options: type, error: ValidationError, prefix: str) -> ConfigError:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    key = ".".join([prefix, *path] if prefix else path)
    if first["type"] == "unexpected_keyword_argument" or first["type"] == "extra_forbidden":
        return ConfigError(key, first["input"], f"there is no such key; {_nearest(options, path)}")
    mend = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return ConfigError(key, first["input"], mend)


def _nearest(options: type, path: list[str]) -> str:
    owner: Any = options
    for part in path[:-1]:
        owner = _dataclass_in(get_type_hints(owner).get(part)) or owner
    names = [f.name for f in dataclasses.fields(owner)]
    close = difflib.get_close_matches(path[-1], names, n=1)
    if close:
        return f"did you mean {'.'.join([*path[:-1], close[0]])}?"
    elsewhere = [key for key, *_ in flat_fields(options) if key.split(".")[-1] == path[-1]]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(names)}"


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass in a hint such as `Spec` or `Spec | None`."""
    return next((h for h in (hint, *get_args(hint)) if inspect.isclass(h) and dataclasses.is_dataclass(h)), None)


@cache
def field_docs(options: type) -> dict[str, str]:
    """Field name -> the string literal written under the field in the dataclass's source, on one line."""
    docs: dict[str, str] = {}
    for owner in reversed(options.__mro__):
        if dataclasses.is_dataclass(owner):
            docs |= _own_field_docs(owner)
    return docs


def _own_field_docs(options: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(options))).body[0]
    assert isinstance(body, ast.ClassDef)
    names = {field.name for field in dataclasses.fields(options)}  # without class variables
    docs: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id in names):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            docs[field.target.id] = " ".join(below.value.value.split())
    return docs


def flat_fields(options: type, prefix: str = "") -> list[tuple[str, Any, Any, str]]:
    """Every leaf key of nested options: (dotted key, type hint, default, meaning)."""
    rows: list[tuple[str, Any, Any, str]] = []
    hints, docs = get_type_hints(options, include_extras=True), field_docs(options)
    for field in dataclasses.fields(options):
        key, nested = f"{prefix}{field.name}", _dataclass_in(hints[field.name])
        if nested is not None:
            rows += flat_fields(nested, f"{key}.")
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        rows.append((key, hints[field.name], default, docs.get(field.name, "")))
    return rows
