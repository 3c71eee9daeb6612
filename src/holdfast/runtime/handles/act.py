"""The common form of every act of a handle: a preview with `dry_run=True`, otherwise done, with a reason for the
journal."""

from collections.abc import Callable
from typing import Literal, overload

from holdfast.runtime.acts import ActResult, Preview


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: Literal[True]) -> Preview: ...


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: Literal[False]) -> ActResult: ...


@overload
def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: bool) -> Preview | ActResult: ...


def act(look: Callable[[], Preview], reason: str, actor: str, dry_run: bool) -> Preview | ActResult:
    """Return the preview of an act; or carry it out, and return its result."""
    preview = look()
    return preview if dry_run else preview.carry_out(reason=reason, actor=actor)
