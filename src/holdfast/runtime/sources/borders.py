"""Places between rows, about evenly over a file: one pass, which only looks closely where there are quotes."""

from collections.abc import Callable
from typing import IO

from holdfast.runtime.sources.blocks import Blocks, LineTooLongError

PASS_BYTES = 1 << 20
SHARE = 16
"""How many blocks of the pass a range has at least, where it is long enough."""


def between(stream: IO[bytes], is_whole: Callable[[bytes, bool], bool], first: int, size: int, parts: int,
            *, longest: int, lone_cr: bool) -> list[int]:  # fmt: skip
    """Up to so many borders less one, in order, each where a row ends and another begins."""
    wanted = [first + (size - first) * part // parts for part in range(1, parts)]
    found: list[int] = []
    if not wanted:
        return found
    stream.seek(first)
    block_bytes = max(1, min(PASS_BYTES, (size - first) // (parts * SHARE)))
    blocks = Blocks(stream, "the file", offset=first, until=size, longest=longest, size=block_bytes, lone_cr=lone_cr)
    for want in wanted:
        while blocks.offset < want:
            _pass_over(blocks, is_whole)
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
