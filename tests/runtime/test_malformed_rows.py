"""Rows of files that cannot be read as rows: buried where they stand, never handled, and the rest goes on."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.model import State, StoredItem
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.report.why import tell
from holdfast.stores.base import Store, each_item
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import App

BAD = {3: b"3", 40: b"40,1,2", 41: b"41,\0", 97: b"97,\xff\xfe"}
WHY = {
    3: "stock.csv:5: has 1 fields, the header has 2",
    40: "stock.csv:42: has 3 fields, the header has 2",
    41: "stock.csv:43: contains a NUL byte",
    97: "stock.csv:99: contains bytes that are not valid in the file's encoding",
}
GOOD = [n for n in range(100) if n not in BAD]


def stock(folder: Path) -> Path:
    """A hundred rows, four of which are none."""
    path = folder / "stock.csv"
    path.write_bytes(b"id,price\n" + b"".join(BAD.get(n, b"%d,%d" % (n, n)) + b"\n" for n in range(100)))
    return path


def letters(store: Store) -> list[StoredItem]:
    (batch,) = store.batches("stock")
    return sorted(each_item(store, batch.id, state=State.DEAD), key=offset_of)


def offset_of(letter: StoredItem) -> int:
    return int(json.loads(letter.payload)["until"]["value"])


def fold(given: list[int]) -> Any:
    def handler(rows: list[Any], acc: int = 0) -> int:
        assert rows, "called for nothing"
        given.extend(int(row["id"]) for row in rows)
        return acc + len(rows)

    return handler


def plain(given: list[int]) -> Any:
    def handler(rows: list[Any]) -> None:
        given.extend(int(row["id"]) for row in rows)

    return handler


def generator(given: list[int]) -> Any:
    def handler(part: Any) -> Any:
        for row in part:
            given.append(int(row["id"]))
            yield len(given)

    return handler


def coroutine(given: list[int]) -> Any:
    async def handler(rows: list[Any], acc: int = 0) -> int:
        given.extend(int(row["id"]) for row in rows)
        return acc + len(rows)

    return handler


@pytest.mark.promise("E1", "B7")
@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize(
    ("shape", "isolate"),
    [
        (fold, False),
        (fold, True),
        (plain, False),
        (plain, True),
        (generator, False),
        (coroutine, False),
        (coroutine, True),
    ],
)
def test_malformed_rows_are_dead_letters_and_no_handler_sees_them(
    folder: Path, shape: Any, partitions: int, isolate: bool
) -> None:
    given: list[int] = []
    scan = hf.Scan("stock", hf.Csv(stock(folder)), every=7, partitions=partitions, isolate=isolate, store="memory:")
    scan.handler(shape(given))
    report = scan.run(progress=False)
    assert sorted(given) == GOOD
    assert report.rows == 100, "every row is behind a checkpoint"
    found = letters(scan.pipeline.store)
    assert [letter.place.reason for letter in found] == list(WHY.values())
    assert {letter.place.code for letter in found} == {"invalid"}
    data = (folder / "stock.csv").read_bytes()
    for letter, (n, line) in zip(found, BAD.items(), strict=True):
        said = json.loads(letter.payload)
        assert data[offset_of(letter) :].startswith(line + b"\n"), n
        assert shape is generator or said["seen"]["rows"] % 7 == 0, "a checkpoint"


@pytest.mark.promise("E1")
def test_a_pipeline_and_a_scan_say_the_same_of_what_is_malformed(folder: Path) -> None:
    lines = folder / "stock.jsonl"
    lines.write_bytes(b'{"id": 1}\n{"id": \n[1, 2\n{"id": "\xff"}\n{"id": 5}\n')
    items = hf.Pipeline("items", store="memory:")
    items.stage(lambda item: item["id"], name="id")
    whole = items.run(hf.JsonLines(lines), key="id", progress=False)
    scan = hf.Scan("stock", hf.JsonLines(lines), store="memory:")
    scan.handler(lambda rows: None)
    parts = scan.run(progress=False)
    assert [(each.code, each.reason) for each in parts.dead] == [(each.code, each.reason) for each in whole.dead]
    assert len(parts.dead) == 3


@pytest.mark.promise("E1")
def test_nothing_but_malformed_rows_calls_no_handler(folder: Path) -> None:
    path = folder / "stock.csv"
    path.write_bytes(b"id,price\n" + b"1\n" * 1_200)
    scan = hf.Scan("stock", hf.Csv(path), every=100, store="memory:")
    scan.handler(fold([]))
    report = scan.run(progress=False)
    assert (report.rows, report.counts.dead) == (1_200, 1_200)


@pytest.mark.promise("E1")
def test_a_malformed_row_that_is_redriven_is_judged_anew(folder: Path) -> None:
    given: list[int] = []
    path = stock(folder)
    scan = hf.Scan("stock", hf.Csv(path), every=7, partitions=3, isolate=True, store=folder / "state.db")
    scan.handler(fold(given))
    scan.run(progress=False)
    store, by = scan.pipeline.store, Actor(name="a person", reason="the file was mended")
    (batch,) = store.batches("stock")
    redrive(store, batch, by, None)
    scan.run(progress=False)
    assert [letter.place.reason for letter in letters(store)] == list(WHY.values()), "it is as it was"
    path.write_bytes(path.read_bytes().replace(b"\n40,1,2\n", b"\n40,120\n"))
    redrive(store, batch, by, None)
    scan.run(progress=False)
    assert sorted(given) == sorted([*GOOD, 40])
    assert [letter.place.reason for letter in letters(store)] == [why for n, why in WHY.items() if n != 40]


@pytest.mark.promise("E1")
def test_a_dead_letter_tells_the_checkpoint_it_was_seen_at_and_commands_that_work(folder: Path) -> None:
    scan = hf.Scan("stock", hf.Csv(stock(folder)), every=10, store="memory:")
    scan.handler(fold([]))
    scan.run(progress=False)
    store = scan.pipeline.store
    (batch,) = store.batches("stock")
    last = letters(store)[-1]
    told = tell(store, batch, str(last.key))
    assert told.checkpoint.startswith("seen by partition 0, after byte "), told.checkpoint
    assert told.checkpoint.endswith("with 90 rows handled")
    assert f"holdfast dead show stock '{last.key}' " in told.commands[0]


APP = """
    import os, sys
    import holdfast as hf

    class Appended:  # a source of its own, so that it can be followed
        def __init__(self, file):
            self.describe, self.read, self.split = file.describe, file.read, file.split

    source = hf.Csv("stock.csv")
    follow = sys.argv[1] == "follow"
    scan = (hf.Follow if follow else hf.Scan)("stock", Appended(source) if follow else source, every=7,
                   **({} if follow else {"partitions": int(sys.argv[1])}), store="state.db",
                   retry=hf.Retry(attempts=3, wait=("1ms", "2ms")))

    @scan.handler
    def add(rows, acc: int) -> int:
        with open("handled", "a") as log:
            log.writelines(f"{row['id']}\\n" for row in rows)
        return acc + len(rows)

    if follow:
        scan.tick(lease="2s")
    else:
        scan.run(progress=False, lease="2s")
"""


@pytest.mark.slow
@pytest.mark.promise("E1", "B1")
@pytest.mark.parametrize(
    ("how", "point"),
    [
        ("1", "add_items.after:2:kill"),
        ("5", "add_items.written:3:kill"),
        ("5", "add_items.after:2:kill"),
        ("follow", "add_items.after:2:kill"),
        ("follow", "commit.written:3:kill"),
    ],
)
def test_killed_around_a_burial_every_malformed_row_is_one_dead_letter(
    folder: Path, how: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock(folder)
    app = App(folder, APP)
    monkeypatch.setenv("HOLDFAST_FAULT", point)
    assert app.run(how).returncode == -signal.SIGKILL
    monkeypatch.delenv("HOLDFAST_FAULT")
    if how == "follow":  # other blocks: what was the last row of the file is not any more
        with (folder / "stock.csv").open("ab") as file:
            file.write(b"100,100\n")
    for _ in range(2):
        done = app.run(how)
        assert done.returncode == 0, done.stderr
    store = SqliteStore(folder / "state.db")
    assert [letter.place.reason for letter in letters(store)] == list(WHY.values())
    wanted = [*GOOD, 100] if how == "follow" else GOOD
    assert sorted({int(line) for line in (folder / "handled").read_text().split()}) == wanted
    (batch,) = store.batches("stock")
    assert sum(at.rows for at in store.checkpoints(batch.id)) == len(wanted) + len(BAD)


def test_names_that_are_not_text_are_buried_and_the_other_files_handled(folder: Path) -> None:
    (folder / "in").mkdir()
    for name in (b"a.txt", b"b\xff.txt", b"c.txt"):
        os.close(os.open(os.fsencode(folder / "in") + b"/" + name, os.O_CREAT | os.O_WRONLY))
    scan = hf.Scan("names", hf.Folder(folder / "in"), store="memory:")
    given: list[str] = []
    scan.handler(lambda rows: given.extend(row.name for row in rows))
    report = scan.run(progress=False)
    assert given == ["a.txt", "c.txt"]
    assert [letter.reason for letter in report.dead] == ["in/b\\xff.txt: its name is not valid UTF-8: rename it"]


MOVING = """
    import os
    import holdfast as hf

    scan = hf.Scan("stock", hf.Csv("stock.csv"), every=7, partitions=2, store="state.db", retry=hf.Retry(attempts=1))

    @scan.handler(executor="processes")
    def add(rows, acc: int) -> int:
        with open("handled", "a") as log:
            log.writelines(f"{row['id']}\\n" for row in rows)
        if not os.path.exists("new.csv"):
            return acc + len(rows)
        os.replace("new.csv", "stock.csv")  # while the first of two ranges is read
        return acc + len(rows)

    if __name__ == "__main__":
        report = scan.run(progress=False, workers=1)
        print([letter.reason for letter in report.dead if letter.code != "invalid"])
        print([letter.reason for letter in report.dead if letter.code == "invalid"])
"""


@pytest.mark.slow
@pytest.mark.promise("B7", "E1")
def test_in_processes_malformed_rows_are_buried_and_a_file_that_is_replaced_is_refused(folder: Path) -> None:
    path = stock(folder)
    (folder / "new.csv").write_bytes(path.read_bytes().replace(b"1", b"2"))
    done = App(folder, MOVING).run()
    assert done.returncode == 0, done.stderr
    refused, buried = done.stdout.splitlines()
    assert "changed after the scan began" in refused
    assert WHY[3] in buried
    handled = {int(line) for line in (folder / "handled").read_text().split()}
    assert handled < set(GOOD), "the first range, as it was, and nothing of the new file"
