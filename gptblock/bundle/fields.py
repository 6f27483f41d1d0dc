"""Reading JSON into dataclasses, strictly: types as annotated, no key unknown, none missing, none twice."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gptblock.errors import ConfigError, CorruptError

T = TypeVar("T")


def parse_object(text: str, source: str) -> dict[str, object]:
    """The JSON object that `text` is. Raises CorruptError naming `source` for anything else.

    A key given twice is refused, and so are NaN and Infinity, which are not JSON.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise corrupt(source, f"cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise corrupt(source, f"must hold a JSON object: got {reprlib.repr(value)}")
    return value


def read_fields(kind: type[T], values: Mapping[str, object], source: str) -> T:
    """The dataclass `kind` out of `values`, down to the last nested field.

    An int serves as a float, a list becomes a tuple; nothing else is converted. A field with a default
    may be missing. Raises CorruptError naming `source`, the key, what was got and what is allowed; what
    the dataclass itself refuses (ConfigError) is reported the same way.
    """
    built: T = _dataclass(kind, values, source, "")
    return built


def corrupt(source: str, what: str) -> CorruptError:
    """The error for a file that is there and not as gptblock wrote it."""
    return CorruptError(
        f"{source} {what}. It is not from gptblock, or was altered: export it again (gptblock export RUN)"
    )


def _typed(hint: Any, value: object, source: str, key: str) -> Any:
    """`value` as `hint` says, or CorruptError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):  # only `X | None` is used
        kind = next(argument for argument in arguments if argument is not NoneType)
        return None if value is None else _typed(kind, value, source, key)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, _expect(dict, value, source, key), source, key)
    if origin is dict:
        items = _expect(dict, value, source, key).items()
        return {name: _typed(arguments[1], item, source, f"{key}[{name!r}]") for name, item in items}
    if origin is tuple:
        items = enumerate(_expect(list, value, source, key))
        return tuple(_typed(arguments[0], item, source, f"{key}[{index}]") for index, item in items)
    if origin is Literal:
        if value not in arguments:
            raise _wrong(source, key, f"one of {', '.join(arguments)}", value)
        return value
    return value if hint is object else _expect(hint, value, source, key)


def _dataclass(kind: Any, values: Mapping[str, object], source: str, key: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise corrupt(source, f"has an unknown key {_joined(key, name)}; allowed are {', '.join(fields)}")
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise corrupt(source, f"lacks the key {_joined(key, name)}")
    hints = get_type_hints(kind)
    typed = {name: _typed(hints[name], value, source, _joined(key, name)) for name, value in values.items()}
    try:
        return kind(**typed)
    except ConfigError as error:
        raise corrupt(source, f"holds in {key or 'its fields'} what is not allowed: {error}") from None


def _expect(kind: Any, value: Any, source: str, key: str) -> Any:
    """`value` if it is a `kind`: bool is no int, and a float is finite."""
    if kind is float and type(value) is int and abs(value) < 2**1023:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise _wrong(source, key, _JSON_NAMES[kind], value)
    return value


def _wrong(source: str, key: str, allowed: str, value: object) -> CorruptError:
    return corrupt(source, f"must have {allowed} as {key}: got {reprlib.repr(value)}")


def _joined(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return values


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is not a number of JSON")


_JSON_NAMES = {
    str: "text",
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}
