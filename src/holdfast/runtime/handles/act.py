"""The common form of every act of a handle: a preview with `dry_run=True`, otherwise done, with a reason for the
journal."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, overload

from holdfast.runtime.acts import ActResult, Preview


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: Literal[True]) -> Preview: ...


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: Literal[False]) -> ActResult: ...


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: bool) -> Preview | ActResult: ...


def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: bool) -> Preview | ActResult:
    """Return what an act would do; or do it to all that is there now, and return what it did."""
    preview = look()
    return preview if dry_run else replace(preview, previewed=None).carry_out(reason=reason, actor=actor)
