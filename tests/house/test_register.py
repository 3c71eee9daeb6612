"""Every column, document field and journal field is in the register of data, and nothing else is."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from holdfast.core import journal
from holdfast.core.register import UNPROVED, DataClass, register, text_fields
from holdfast.stores.bucket import documents
from holdfast.stores.sqlite import SqliteStore

NOT_STORED = {"Encoded", "Chain", "FirstHeader"}
"""Of the journal's classes: built and thrown away, or the same fields as another."""
IN_MEMORY = {"CutDocument", "FirstChunkDocument"}
"""Of a bucket's classes: never written, or a document of an older format with the same fields."""
INTERNAL = {"sqlite_sequence", "sqlite_stat1"}


def columns(folder: Path) -> Iterator[str]:
    SqliteStore(folder / "state.db").close()
    db = apsw.Connection(str(folder / "state.db"))
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        if table not in INTERNAL:
            yield from (f"{table}.{row[1]}" for row in db.execute(f"PRAGMA table_info({table})"))
    db.close()


def structs(module: object, without: set[str]) -> Iterator[type[msgspec.Struct]]:
    for name, value in vars(module).items():
        is_own = isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__  # type: ignore[attr-defined]
        if is_own and name not in without:
            yield value


def fields_of(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    parents = [
        parent for parent in kind.__mro__[1:] if issubclass(parent, msgspec.Struct) and parent is not msgspec.Struct
    ]
    base = {field for parent in parents for field in parent.__struct_fields__}
    return (f"{prefix}.{kind.__name__}.{field}" for field in kind.__struct_fields__ if field not in base)


def test_every_column_of_every_table_is_in_the_register(tmp_path: Path) -> None:
    found = {name for name in register() if not name.startswith(("journal.", "documents."))} | {
        name for name in register() if name.startswith("journal.") and name.count(".") == 1
    }
    assert set(columns(tmp_path)) == found


def test_every_field_of_the_journal_is_in_the_register() -> None:
    found = {name for kind in structs(journal, NOT_STORED) for name in fields_of(kind, "journal")}
    assert found == {name for name in register() if name.startswith("journal.") and name.count(".") == 2}


def test_every_field_of_a_bucket_s_documents_is_in_the_register() -> None:
    found = {name for kind in structs(documents, IN_MEMORY) for name in fields_of(kind, "documents")}
    assert found == {name for name in register() if name.startswith("documents.")}


def test_every_record_with_words_has_a_commitment_to_them() -> None:
    for kind in structs(journal, NOT_STORED):
        if text_fields(f"journal.{kind.__name__}"):
            assert "said" in kind.__struct_fields__, kind


def test_what_rests_on_no_proof_is_in_the_register_and_says_why() -> None:
    assert set(UNPROVED) <= set(register())
    assert all(len(why) > 20 for why in UNPROVED.values())
    assert all(name in Path("docs/evidence.md").read_text(encoding="utf-8") for name in UNPROVED)


def test_what_can_be_looked_up_is_never_text() -> None:
    assert register()["keys.number"] is DataClass.INDEX
    assert register()["items.key"] is DataClass.TEXT
