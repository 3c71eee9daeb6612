"""The one rule by which values become JSON."""

import json
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

import msgspec

from holdfast.core.plain import Plain, plain


class Mood(StrEnum):
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Inner:
    mood: Mood
    usd: Decimal | None = None


class Packed(msgspec.Struct, frozen=True):
    data: bytes
    inner: Inner


@dataclass(frozen=True, slots=True)
class Listed(Plain):
    _tells: ClassVar[str] = "name total=count mood=inner.mood * note? double"

    count: int
    inner: Inner
    note: str = ""
    _hidden: int = 0

    @property
    def name(self) -> str:
        return "listed"

    @property
    def double(self) -> int:
        return 2 * self.count


@dataclass(frozen=True, slots=True)
class Own(Plain):
    """Writes its own."""

    def as_dict(self) -> dict[str, Any]:
        return {"own": True}


def test_values_are_told_by_their_fields() -> None:
    packed = Packed(b"caf\xc3\xa9 \xff", Inner(Mood.GOOD, Decimal("1E-7")))
    assert plain(packed) == {"data": "café �", "inner": {"mood": "good", "usd": "0.0000001"}}


def test_a_class_lists_what_it_tells_in_its_order() -> None:
    told = Listed(3, Inner(Mood.GOOD)).as_dict()
    assert list(told.items()) == [
        ("name", "listed"), ("total", 3), ("mood", "good"), ("count", 3), ("inner", {"mood": "good", "usd": None}),
        ("note", ""), ("double", 6),
    ]  # fmt: skip


def test_what_is_empty_can_be_left_out() -> None:
    @dataclass(frozen=True)
    class Quiet(Plain):
        _tells: ClassVar[str] = "count note?"
        count: int
        note: str

    assert Quiet(0, "").as_dict() == {"count": 0}
    assert Quiet(0, "mind").as_dict() == {"count": 0, "note": "mind"}


def test_an_exception_is_written_by_its_class() -> None:
    assert plain({"one": Own(), "more": (Own(),)}) == {"one": {"own": True}, "more": [{"own": True}]}


def test_everything_comes_out_as_json() -> None:
    value = {
        Mood.GOOD: MappingProxyType({1: frozenset({2})}),
        "id": UUID(int=7), "truth": True, "share": 0.5, "nothing": None, "pairs": (("why", 1),),
    }  # fmt: skip
    assert json.loads(json.dumps(plain(value))) == {
        "good": {"1": [2]}, "id": "00000000-0000-0000-0000-000000000007", "truth": True, "share": 0.5, "nothing": None,
        "pairs": [["why", 1]],
    }  # fmt: skip
