"""A receiver of messages that is made to be killed: each is handed to `process()`, and what handlers do is written to a
file outside of the store. Three stages: one plain, one async that costs money, one that writes a file."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import holdfast as hf
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from tests.faults.app import count_points

BATCH, STORE, EFFECTS = "letters", "state.db", "effects.jsonl"
STAGES = ("read", "price", "bind")
CENTS = {"read": 0, "price": 2, "bind": 3}


def build(killer: int | None = None) -> hf.Pipeline:
    letters = hf.Pipeline("letters", store=STORE)
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(number: int, stage: str) -> None:
        os.write(file, json.dumps({"key": number, "stage": stage}).encode() + b"\n")

    @letters.stage
    def read(number: int) -> int:
        tell(number, "read")
        if number == killer:
            os._exit(9)
        return number

    @letters.stage(retry=hf.Retry(attempts=3, wait=("0s", "0s")))
    async def price(number: int, ctx: hf.Context) -> int:
        tell(number, "price")
        ctx.spend(usd="0.02")
        await asyncio.sleep(0)
        if number == 2 and ctx.attempt == 1:
            raise hf.Transient("once more")
        return number

    @letters.stage(sink=hf.Files("out/{key}.json"))
    def bind(number: int, ctx: hf.Context) -> str:
        tell(number, "bind")
        ctx.spend(usd="0.03")
        return f"letter {number}"

    return letters


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--count", type=Path)
    parser.add_argument("--amnesia", action="store_true")
    parser.add_argument("--together", action="store_true", help="admit them as one chunk first, as a source would")
    parser.add_argument("--killer", type=int)
    parser.add_argument("--only", type=int, action="append", help="the messages that are delivered")
    given = parser.parse_args(argv)
    if given.count:
        count_points(given.count)
    letters = build(given.killer)
    letters.expect(BATCH, given.keys)
    if given.together:
        with letters.processor(batch=BATCH) as one:
            items = [one.ingester.freeze(number, None) for number in range(given.keys)]
            one.store.add_items(one.batch.id, items)
    for number in given.only if given.only is not None else range(given.keys):
        result = letters.process(number, batch=BATCH)
        print(json.dumps([number, result.state, result.output]), flush=True)  # noqa: T201 - what the test reads
        if given.amnesia:  # a receiver that remembers nothing
            by = Actor(name="nobody", reason="amnesia")
            operations.reset(letters.store, lookup.batch_named(letters.store, BATCH), by, str(number))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
