"""Walk one item with one stage through a new SQLite file, and tell what it passes: python walk.py FOLDER."""

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast as hf

OURS = str(Path(hf.__file__).parent) + "/"


class Tracer:
    """Notes the files of ours that are called, and counts calls from one package into another."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.borders = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (called := place(frame)) or is_resumed(frame):
            return
        self.files.add(called)
        caller = frame.f_back
        while caller is not None and not place(caller):
            caller = caller.f_back
        self.borders += caller is not None and Path(place(caller)).parent != Path(called).parent


def place(frame: FrameType) -> str:
    """The file of a frame within the package; empty for one that is not ours."""
    file = frame.f_code.co_filename
    return file.removeprefix(OURS) if file.startswith(OURS) else ""


def is_resumed(frame: FrameType) -> bool:
    """Whether a generator continues after a `yield`; the argument of its instruction RESUME tells."""
    return bool(frame.f_code.co_code[frame.f_lasti + 1] & 3)


def made(file: str) -> hf.Pipeline:
    book = hf.Pipeline("book", store=Path(sys.argv[1]) / file)

    @book.stage
    def shout(word: str) -> str:
        return word.upper()

    return book


def main() -> None:
    made("first.db").run(["word"], progress=False)  # so that all modules are loaded
    book, tracer = made("state.db"), Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    report = book.run(["word"], progress=False)
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    assert report.is_complete
    sys.stdout.write(json.dumps({"files": sorted(tracer.files), "borders": tracer.borders}))


if __name__ == "__main__":
    main()
