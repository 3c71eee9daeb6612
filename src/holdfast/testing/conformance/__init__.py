"""The suite that every store must pass.

For a new store, add one line to a test file:

    from holdfast.testing.conformance import conformance

    test_my_store = conformance(lambda place, **given: MyStore(place / "state", **given))

pytest then runs every check below on a new store: `test_my_store[a_stale_fence_cannot_commit]` and so on. `place` is an
empty folder. The store is also given `clock`, a clock that moves only when the check moves it; `is_dead`, which returns
whether the process of an owner is known to have ended; and `draw`, which returns random bytes for ids and salts. For a
store that loses everything when it is closed, pass `durable=False`; for one that lacks capabilities, name them, as in
`without=("budget", "events")`, and their checks are left out.

A check is a function whose name is the promise. `holdfast.testing.comparison` goes further: it calls the store and the
memory store with the same random calls and compares the answers.
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType

import pytest

CHAPTER_NAMES = (
    "opening",
    "claiming",
    "spending",
    "holding",
    "committing",
    "scanning",
    "acting",
    "ending",
    "reading",
    "recording",
    "durability",
)
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in CHAPTER_NAMES))  # a failure then shows its values

from holdfast.stores.base import Capabilities  # noqa: E402
from holdfast.testing.conformance import (  # noqa: E402
    acting,
    claiming,
    committing,
    durability,
    ending,
    holding,
    opening,
    reading,
    recording,
    scanning,
    spending,
)
from holdfast.testing.conformance.kit import Check, Kit, MakeStore  # noqa: E402

__all__ = ["Check", "Kit", "MakeStore", "checks", "conformance"]

CHAPTERS = (opening, claiming, spending, holding, committing, scanning, acting, ending, reading, recording)


def conformance(make_store: MakeStore, *, durable: bool = True, without: Collection[str] = (),
                mark: Callable[..., pytest.MarkDecorator] | None = None) -> Callable[..., None]:  # fmt: skip
    """Return a test function for pytest with one case for each check. `mark` is called with the promises that a check
    proves."""
    cases = [
        pytest.param(
            check, id=check.__name__, marks=[mark(*promises)] if mark and (promises := promises_of(check)) else []
        )
        for check in checks(durable=durable, without=without)
    ]

    @pytest.mark.parametrize("check", cases)
    def test(check: Check, tmp_path: Path) -> None:
        kit = Kit(make_store, tmp_path)
        try:
            check(kit)
        finally:
            kit.store.close()

    return test


def checks(*, durable: bool = True, without: Collection[str] = ()) -> list[Check]:
    """Return every check, in reading order, except those of missing capabilities."""
    unknown = set(without) - set(Capabilities.__struct_fields__)
    assert not unknown, f"these are not capabilities: {sorted(unknown)}"
    every = [check for chapter in (*CHAPTERS, *([durability] if durable else [])) for check in _of(chapter)]
    return [check for check in every if not set(needs_of(check)) & set(without)]


def needs_of(check: Check) -> tuple[str, ...]:
    return getattr(check, "capabilities", ())


def promises_of(check: Check) -> tuple[str, ...]:
    return getattr(check, "promises", ())


def _of(chapter: ModuleType) -> Iterator[Check]:
    return (
        value for value in vars(chapter).values() if hasattr(value, "promises") and value.__module__ == chapter.__name__
    )
