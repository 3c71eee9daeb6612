"""The search for borders in a large file is resumed by the run after one that was killed in it."""

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.operate.audit import verify
from holdfast.runtime.scan import plan
from holdfast.runtime.sources import text_file
from tests.runtime.support import SOON


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def at_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "TELL_SECONDS", 0.0)
    monkeypatch.setattr(text_file, "PASS_BYTES", 512)


def scan() -> hf.Scan:
    made = hf.Scan("orders", hf.Csv("orders.csv"), store=Path("state.db"), partitions=4, retry=SOON)
    made.handler(lambda rows, acc=0: acc + sum(int(row["id"]) for row in rows))
    made.converge(sum)
    return made


def passed(monkeypatch: pytest.MonkeyPatch, dies_at: int | None = None) -> list[int]:
    """The bytes at which blocks of the pass begin; at one of them the process is killed."""
    seen: list[int] = []
    real = text_file._pass_over

    def over(blocks: Any, is_whole: Any) -> None:
        if dies_at is not None and blocks.offset >= dies_at:
            raise Killed
        seen.append(blocks.offset)
        real(blocks, is_whole)

    monkeypatch.setattr(text_file, "_pass_over", over)
    return seen


@pytest.mark.promise("B7")
def test_a_killed_search_is_resumed_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'{n},"a name, with\na line"\n' if n % 3 else f"{n},rope\n" for n in range(2000)]
    Path("orders.csv").write_text("id,name\n" + "".join(rows))
    size = Path("orders.csv").stat().st_size
    reached = 0
    for dies_at in (size // 5, size // 2):
        with monkeypatch.context() as dying:
            seen = passed(dying, dies_at)
            with pytest.raises(Killed):
                scan().run(progress=False)
            assert seen[0] >= reached, "what was passed over is not passed over again"
            reached = seen[-1]
    seen = passed(monkeypatch)
    made = scan()
    assert made.run(progress=False).result == sum(range(2000))
    assert seen[0] > size // 2 - 4096
    store = made.pipeline.store
    found = verify(store, store.batches()[0])
    assert found.holds, found.findings


def test_another_file_is_sought_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("orders.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(5000)))
    with monkeypatch.context() as dying:
        passed(dying, 9000)
        with pytest.raises(Killed):
            scan().run(progress=False)
    Path("orders.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(1, 5001)))
    seen = passed(monkeypatch)
    assert scan().run(progress=False).result == sum(range(1, 5001))
    assert seen[0] < 600


def test_a_file_that_grew_meanwhile_is_divided_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("orders.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(5000)))
    with monkeypatch.context() as dying:
        passed(dying, 9000)
        with pytest.raises(Killed):
            scan().run(progress=False)
    with Path("orders.csv").open("a") as file:
        file.write("5000\n")
    report = scan().run(progress=False)
    assert report.result == sum(range(5000))
    assert any("has grown by 5 bytes" in note for note in report.warnings)
