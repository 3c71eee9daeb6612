"""The small pipeline that is made to be killed, for several fleets on one prefix: each folder beside it is a batch."""

from pathlib import Path

from tests.faults import app


def settle_in(folder: Path) -> None:
    """The state is beside the folder, the batch has its name."""
    app.STORE, app.BATCH = f"file://{folder.parent}/state", folder.name


def main(argv: list[str]) -> int:
    settle_in(Path.cwd())
    return app.main(argv)
