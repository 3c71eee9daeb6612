"""A small pipeline for the command: numbers doubled, one file each."""

from collections.abc import Iterator

import holdfast as hf

doubling = hf.Pipeline("doubling", store="state.db")
COUNT = 5


@doubling.source
def numbers() -> Iterator[int]:
    yield from range(COUNT)


@doubling.stage(sink=hf.Files("out/{key}.json"))
def double(number: int) -> int:
    return 2 * number
