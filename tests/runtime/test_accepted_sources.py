"""Another source is accepted for a batch while a process still follows the old one: it notices, and handles nothing."""

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.scan import follow as follow_module
from holdfast.runtime.scan.tick import Ended
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import Rows
from tests.runtime.support import SOON, App, wait_for

PROGRAM = """
    import sys, pathlib
    import holdfast as hf
    from holdfast.testing.rows import Rows

    table, *words = sys.argv[1:]

    class Table(Rows):
        def describe(self): return {"kind": "rows", "table": table}
        def read(self, after, until):
            self.rows = pathlib.Path(table).read_text().split()
            return super().read(after, until)

    scan = hf.Follow("orders", Table([]), store="state.db", every=1)

    @scan.handler
    def keep(rows, acc: int) -> int:
        with open("seen", "a") as file: file.write("".join(f"{table}:{row}\\n" for row in rows))
        return acc + len(rows)

    if __name__ == "__main__":
        if "stay" in words:
            scan.run(poll="20ms")
        else:
            print(scan.tick(accept_source=" ".join(words) if words else None).ended)
"""


@pytest.mark.promise("C14", "C16")
def test_a_process_that_stays_ends_once_another_one_accepted_another_source(folder: Path) -> None:
    app, seen = App(folder, PROGRAM), folder / "seen"
    (folder / "orders").write_text("a b")
    (folder / "invoices").write_text("a b")
    old = app.start("orders", "stay")
    wait_for(lambda: seen.exists() and len(seen.read_text().split()) == 2)
    refused = app.run("invoices")
    assert refused.returncode != 0
    assert 'table: "orders" became "invoices"' in refused.stderr
    accepted = app.run("invoices", "it", "was", "renamed")
    assert accepted.stdout.strip() == "nothing new", accepted.stderr
    assert old.poll() is None, "it cannot know yet: it has found nothing new"
    (folder / "orders").write_text("a b c")
    _, err = old.communicate(timeout=20)
    assert old.returncode == 1
    assert "FingerprintChanged: batch 'orders' follows another source since this process began" in err
    assert 'table: "orders" became "invoices"' in err
    (folder / "invoices").write_text("a b d")
    assert app.run("invoices").stdout.strip() == "caught up", "the lease was given back"
    assert seen.read_text().split() == ["orders:a", "orders:b", "invoices:d"]


class Named(Rows):
    table = "orders"

    def describe(self) -> dict[str, Any]:
        return {"kind": "rows", "table": self.table}


def follow(store: SqliteStore, table: str, rows: list[Any]) -> tuple[hf.Scan, list[Any]]:
    source, given = Named(rows), list[Any]()
    source.table = table
    scan = hf.Follow("orders", source, store=store, isolate=True, retry=SOON)

    @scan.handler
    def keep(some: list[Any]) -> None:
        given.extend(some)
        if "poison" in some:
            raise ValueError("no")

    return scan, given


def test_one_that_finds_nothing_new_looks_every_minute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(folder / "state.db")
    old, _ = follow(store, "orders", [1])
    old.tick()
    new, _ = follow(store, "invoices", [1])
    assert new.tick(accept_source="renamed").ended is Ended.NOTHING_NEW
    assert old.tick().ended is Ended.NOTHING_NEW
    monkeypatch.setattr(follow_module, "SOURCE_SECONDS", 0.0)
    with pytest.raises(hf.FingerprintChanged, match="since this process began"):
        old.tick()
    assert new.tick().ended is Ended.NOTHING_NEW


def test_rows_that_were_redriven_are_not_looked_for_in_the_old_source(folder: Path) -> None:
    store = SqliteStore(folder / "state.db")
    old, given = follow(store, "orders", [1, "poison"])
    assert old.tick().dead == 1
    new, others = follow(store, "invoices", [1, "mended"])
    new.tick(accept_source="renamed")
    redrive(store, store.batches()[0], Actor(name="ann", reason="mended"))
    given.clear()
    with pytest.raises(hf.FingerprintChanged):
        old.redriven()
    assert given == []
    assert (new.redriven(), others) == (1, ["mended"])


def test_another_definition_with_the_same_source_is_no_reason_to_end(folder: Path) -> None:
    store = SqliteStore(folder / "state.db")
    rows = [1]
    old, given = follow(store, "orders", rows)
    old.tick()
    new, _ = follow(store, "orders", rows)

    @new.handler
    def another(some: list[Any], acc: int) -> int:
        return acc + len(some)

    rows.append(2)
    new.tick()
    rows.append(3)
    assert old.tick().total == 3
    assert given == [1, 3]
