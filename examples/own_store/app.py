"""Squares of ten numbers, in a custom store: run `python examples/own_store/app.py`, again after every crash."""

import sys
from pathlib import Path

import holdfast as hf

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.own_store.log_store import LogStore

if __name__ == "__main__":
    squares = hf.Pipeline("squares", store=LogStore("squares.log"))

    @squares.stage
    def square(number: int) -> int:
        return number * number

    report = squares.run(range(10), progress=False)
    print(report)
    raise SystemExit(report.exit_code)
