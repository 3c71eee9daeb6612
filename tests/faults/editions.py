"""A pipeline in two editions: the second has another code in its middle stage, and runs again what that affects."""

import argparse
import json
import os
import sys

import holdfast as hf
from holdfast.runtime import acts

STORE, EFFECTS, COUNT = "state.db", "effects.jsonl", 6


def build(edition: int) -> hf.Pipeline:
    book = hf.Pipeline("book", store=STORE)
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(stage: str, number: int) -> None:
        os.write(file, json.dumps([edition, stage, number]).encode() + b"\n")

    @book.stage
    def first(number: int) -> int:
        tell("first", number)
        return number

    if edition == 1:

        @book.stage
        def second(number: int) -> int:
            tell("second", number)
            return number * 10

    else:

        @book.stage
        def second(number: int) -> int:
            tell("second", number)
            return number * 20

    @book.stage
    def third(number: int) -> int:
        tell("third", number)
        return number + 1

    return book


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--edition", type=int, required=True)
    given = parser.parse_args(argv)
    acts.ACT_ITEMS = 4  # type: ignore[misc]
    report = build(given.edition).run(range(COUNT), on_code_change="rerun", progress=False, workers=2)
    print(json.dumps({result.key: result.output for result in report.results()}))  # noqa: T201 - what the test reads
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
