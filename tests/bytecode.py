"""Bytecode that is written once, and not made by each of the hundreds of interpreters that tests start.

Where the environment forbids to write it (PYTHONDONTWRITEBYTECODE), every process compiles Holdfast and its libraries
again, which is most of what it costs to start. So collecting the tests writes it. While tests run nothing is written:
they replace modules within a second, and bytecode tells two versions apart by time and size only.
"""

import sys

IS_FORBIDDEN = sys.dont_write_bytecode

sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = IS_FORBIDDEN
