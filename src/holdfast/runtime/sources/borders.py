"""Places between rows, about evenly over a file: one pass, which only looks closely where there are quotes."""

from collections.abc import Callable
from typing import IO, NamedTuple

from holdfast.runtime.sources.blocks import Blocks, LineTooLongError

PASS_BYTES = 1 << 20
SHARE = 16
"""How many blocks of the pass a range has at least, where it is long enough."""


class Search(NamedTuple):
    """How far a pass has come."""

    at: int
    """The byte: a row ends before it."""
    done: int = 0
    """Of the places that are wanted, how many are behind it."""
    found: tuple[int, ...] = ()


def between(stream: IO[bytes], is_whole: Callable[[bytes, bool], bool], first: int, size: int, parts: int,
            *, longest: int, lone_cr: bool, so_far: Search | None = None,
            tell: Callable[[Search], None] | None = None) -> list[int]:  # fmt: skip
    """Up to so many borders less one, in order, each where a row ends and another begins. A pass that was broken off
    resumes where it was."""
    wanted = [first + (size - first) * part // parts for part in range(1, parts)]
    if not wanted:
        return []
    begin = so_far if so_far is not None else Search(first)
    found = list(begin.found)
    stream.seek(begin.at)
    block_bytes = max(1, min(PASS_BYTES, (size - first) // (parts * SHARE)))
    blocks = Blocks(stream, "the file", offset=begin.at, until=size, longest=longest, size=block_bytes, lone_cr=lone_cr)
    for done, want in enumerate(wanted[begin.done :], begin.done):
        while blocks.offset < want:
            _pass_over(blocks, is_whole)
            if tell is not None:
                tell(Search(blocks.offset, done, tuple(found)))
        if first < blocks.offset < size and blocks.offset not in found[-1:]:
            found.append(blocks.offset)
    return found


def _pass_over(blocks: Blocks, is_whole: Callable[[bytes, bool], bool]) -> None:
    """Go over a block that ends where a row ends."""
    beyond = 0
    try:
        while block := blocks.peek(beyond):
            if is_whole(block.data, block.at_end):
                blocks.take(len(block.data))
                return
            beyond = len(block.data)
    except LineTooLongError:
        blocks.pass_over_line()  # whoever reads it says what is wrong with it
