"""Annotations as schemas: they encode a value to the stored bytes, and decode it again.

A stage never gets the object that another stage made: it gets a value decoded from the stored bytes. So it sees the
same value with or without a crash in between, and cannot change what another stage reads.
"""

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from holdfast.core import canonical
from holdfast.core.errors import UsageError


class Invalid(Exception):
    """A value does not fit its schema."""

    def __init__(self, message: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.code = code


OPEN: tuple[Any, ...] = (Any, object, dict, list, dict[str, Any], list[Any], list[dict[str, Any]])
"""Annotations that accept every value, so that only reading it back shows what JSON would change."""

PLAIN_KINDS = (str, int, bool, float)
"""Types that JSON preserves, except for NaN and infinite numbers, which become null, and very long ones."""
LONG_NUMBER = 4_000
"""The length of the data from which it may contain a number too long to be read."""
CANNOT_ENCODE = (ValidationError, PydanticSerializationError, ValueError, TypeError, RecursionError)
"""Errors of pydantic for a value that does not fit, or that JSON cannot hold."""


class Schema:
    """One annotation, which validates, encodes and decodes values. Without an annotation, any plain JSON value is
    valid."""

    def __init__(self, annotation: Any, what: str, code: str = "invalid_input") -> None:
        self.annotation = annotation
        self.what = what
        self.code = code
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except Exception as error:  # noqa: BLE001 - pydantic raises several kinds of errors if it cannot build a schema
            raise UsageError(f"{what}: {annotation!r} cannot be a schema ({_first_line(error)})") from None
        built = str(adapter.core_schema)
        if "pydantic.types.Secret" in built:  # stored as asterisks, which a stage would get back
            raise UsageError(
                f"{what} contains a secret, and secrets are never stored: pass its name, and look it up in the handler"
            )
        self._has_sets = "'type': 'set'" in built or "'type': 'frozenset'" in built
        self.adapter = adapter
        self._check: Callable[[Any], Any] = adapter.validator.validate_python
        self._parse: Callable[[bytes], Any] = adapter.validator.validate_json
        if "alias" in built:  # fields are stored under their names, and can also be read under an alias
            self._parse = partial(self._parse, by_name=True)
        self._dump: Callable[..., bytes] = adapter.serializer.to_json
        self._open = annotation in OPEN
        self._kinds = _kinds_of_fields(annotation)

    def decode(self, data: bytes) -> Any:
        """Return the value of stored bytes."""
        try:
            return self._parse(data)
        except ValidationError as error:
            raise Invalid(explain(error), self.code) from None

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a handler's result, and make sure that they decode to a valid value."""
        # Reading back finds what the serializer would only warn about; its warnings cost a microsecond.
        try:
            data = self._dump(self._check(value), round_trip=True, warnings=False)
            if self._open:
                return self._plain(value, data)
            if self._kinds is None or not self._is_as_declared(value, data):
                self._parse(data)
            return data
        except CANNOT_ENCODE as error:
            raise self._refusal(error) from None

    def freeze(self, value: Any) -> bytes:
        """Return the bytes of a raw item. A plain dict was fully validated, so it is not read back, unless a value
        became null, as NaN does."""
        if type(value) is not dict or self._open:
            return self.encode(value)
        try:
            data = self._dump(self._check(value), round_trip=True, warnings=False)
            if b"null" in data:
                self._parse(data)
            return data
        except CANNOT_ENCODE as error:
            raise self._refusal(error) from None

    def _is_as_declared(self, value: Any, data: bytes) -> bool:
        """Return whether every field of a model with only plain fields has its declared type: then it is not read
        back."""
        if type(value) is not self.annotation or len(data) >= LONG_NUMBER or b"null" in data:
            return False
        fields = value.__dict__
        return (tuple(fields), tuple(map(type, fields.values()))) == self._kinds

    def _refusal(self, error: Exception) -> Invalid:
        text = explain(error) if isinstance(error, ValidationError) else _first_line(error)
        return Invalid(text, self.code)

    def _plain(self, value: Any, data: bytes) -> bytes:
        """Return the bytes of a value without an annotation; refuse one that JSON would change."""
        if isinstance(value, BaseModel) or msgspec.json.decode(data) != value:
            kind = type(value).__name__
            raise Invalid(
                f"a {kind} is changed by JSON: annotate the stage with the exact type",
                self.code,
            )
        return data

    def content(self, data: bytes) -> bytes:
        """Return stored bytes that are the same for equal values, in any order of dicts and sets."""
        value = self.adapter.dump_python(self.decode(data)) if self._has_sets else msgspec.json.decode(data)
        return msgspec.json.encode(value, order="deterministic", enc_hook=_print)

    def describe(self) -> str:
        """Return the name of the schema for people and fingerprints."""
        annotation = self.annotation
        return annotation.__name__ if inspect.isclass(annotation) else str(annotation).removeprefix("typing.")

    def shape(self) -> str:
        """Return a digest of what is valid: of names, types and limits, not of descriptions or of validator
        functions."""
        try:
            return canonical.fingerprint(_without_descriptions(self.adapter.json_schema()))
        except (PydanticUserError, TypeError, ValueError):  # a type without a JSON schema: use its name
            return canonical.fingerprint(self.describe())

    def field(self, value: Any, name: str) -> Any:
        """Return the field of that name of a validated or raw value."""
        if isinstance(value, BaseModel) or not isinstance(value, dict):
            return getattr(value, name)
        return value[name]


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_descriptions(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bare = {}
    for name, value in schema.items():
        if name in ("properties", "$defs"):  # these names are the user's
            bare[name] = {each: _without_descriptions(shape) for each, shape in value.items()}
        elif name not in ("description", "title", "examples"):
            bare[name] = _without_descriptions(value)
    return bare


def _kinds_of_fields(annotation: Any) -> tuple[tuple[str, ...], tuple[type, ...]] | None:
    """Return (names, types) of the fields of a model with only plain fields and no validators; None for any other."""
    if not (inspect.isclass(annotation) and issubclass(annotation, BaseModel)) or annotation.model_config:
        return None
    decorators = annotation.__pydantic_decorators__
    if any(getattr(decorators, name) for name in type(decorators).__slots__):
        return None
    if annotation.__pydantic_root_model__ or annotation.__pydantic_custom_init__ or annotation.__pydantic_post_init__:
        return None
    kinds: dict[str, type] = {}
    for name, field in annotation.model_fields.items():
        kind: Any = field.annotation
        if kind not in PLAIN_KINDS or field.metadata or field.alias or field.exclude:
            return None
        kinds[name] = kind
    return tuple(kinds), tuple(kinds.values())


def explain(error: ValidationError) -> str:
    """Return what is wrong with a value, field by field, in one line, without the values themselves."""
    parts = []
    for detail in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
        where = ".".join(str(part) for part in detail["loc"])
        parts.append(f"{where}: {detail['msg']}" if where else detail["msg"])
    more = error.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def raw_bytes(value: Any) -> bytes:
    """Return the bytes to store for an invalid value: JSON if possible, otherwise its repr."""
    if isinstance(value, BaseModel):
        value = value.__dict__
    try:
        return msgspec.json.encode(value, enc_hook=_print, order="sorted")
    except Exception:  # noqa: BLE001 - the last resort for a value that can raise anything
        return msgspec.json.encode(_print(value))


def _print(value: Any) -> str:
    try:
        return repr(value)[:2000]
    except Exception:  # noqa: BLE001 - a repr may raise anything
        return f"<{type(value).__name__}>"


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{getattr(function, '__name__', function)}: its annotations cannot be resolved ({error}); define the "
            "types before the stage, at the top of the module"
        ) from None
    except TypeError:
        return {}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
