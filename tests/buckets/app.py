"""The small pipeline that is made to be killed, with its state in a directory that is used as a bucket."""

from pathlib import Path

from tests.faults import app


def url_in(folder: Path) -> str:
    return f"file://{folder}/state"


def main(argv: list[str]) -> int:
    app.STORE = url_in(Path.cwd())
    return app.main(argv)
