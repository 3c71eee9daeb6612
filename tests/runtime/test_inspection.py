"""Does an output still hold? A run, its plan, a reconciliation, an audit and a recovery give one answer."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
from pydantic import BaseModel, field_validator

import holdfast as hf
from holdfast.core.verify import Verdict, What
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit
from tests.rights import as_an_ordinary_user
from tests.runtime.support import Calls, run

COUNT, ODD = 6, 2
"""So many items, and the one whose output is damaged."""
BY = Actor(name="op", reason="for the test")
HOLDS, FAILS, UNKNOWN = Verdict


class Text(BaseModel):
    number: int
    text: str


class Strict(Text):
    """An output that was valid when it was made."""

    @field_validator("text")
    @classmethod
    def is_not_odd(cls, text: str) -> str:
        assert not text.startswith(f"page {ODD}"), "no such page"
        return text


@dataclass
class World:
    """A pipeline with one output per item, in a file or in the store; what its verifier says can be changed."""

    in_files: bool = True
    says: Callable[[], Any] = lambda: True
    answer: type[BaseModel] = Text
    replaces: bool = False
    file: Path = Path(f"out/page_{ODD}.json")

    def __post_init__(self) -> None:
        self.calls = Calls()

    def pipeline(self, store: str = "state.db") -> hf.Pipeline:
        book = hf.Pipeline("book", store=store)
        sink = hf.Files("out/page_{key}.json", replaces=self.replaces) if self.in_files else None

        def read(number: int, ctx: hf.Context):  # type: ignore[no-untyped-def]
            self.calls(number)
            return Text(number=number, text=f"page {number} of {ctx.batch}")

        read.__annotations__["return"] = self.answer
        stage = book.stage(sink=sink)(read)

        @stage.verify(timeout="100ms")
        def holds(out: Any) -> Any:
            return self.says() if out.number == ODD else True

        return book


# -- the ways in which an output can be wrong --------------------------------------------------------------------------


def missing(world: World) -> None:
    world.file.unlink()


def shorter(world: World) -> None:
    world.file.write_bytes(world.file.read_bytes()[:-3])


def other(world: World) -> None:
    world.file.write_bytes(world.file.read_bytes().replace(b"page", b"p4ge"))


def other_unnoticed(world: World) -> None:
    info = world.file.stat()
    other(world)
    os.utime(world.file, ns=(info.st_atime_ns, info.st_mtime_ns))


def touched(world: World) -> None:
    os.utime(world.file, (1, 1))


def folder_in_place(world: World) -> None:
    world.file.unlink()
    world.file.mkdir()


def unreadable(world: World) -> None:
    world.file.chmod(0)


def unreadable_and_touched(world: World) -> None:
    touched(world)
    unreadable(world)


def of_another_batch(world: World) -> None:
    """A newer batch takes the names, with leave."""
    world.replaces = True
    run(world.pipeline(), range(COUNT), batch="newer")
    world.calls.clear()


def unfit(world: World) -> None:
    world.answer = Strict


def refused(world: World) -> None:
    world.says = lambda: hf.Bad("two columns")


def raising(world: World) -> None:
    def fall() -> None:
        raise ConnectionError("the database is down")

    world.says = fall


def hanging(world: World) -> None:
    world.says = threading.Event().wait


def no_bool(world: World) -> None:
    world.says = lambda: "fine"


def sql(statement: str) -> Callable[[World], None]:
    def do(_: World) -> None:
        with apsw.Connection("state.db") as db:
            db.execute(statement)

    return do


EVERY = (HOLDS, HOLDS, HOLDS)
WAYS: dict[str, tuple[Callable[[World], None], tuple[Verdict, Verdict, Verdict], Verdict]] = {
    "nothing": (lambda _: None, EVERY, HOLDS),
    "missing": (missing, (FAILS, FAILS, FAILS), FAILS),
    "shorter": (shorter, (FAILS, FAILS, FAILS), FAILS),
    "other bytes": (other, (FAILS, FAILS, FAILS), FAILS),
    "other bytes, same time": (other_unnoticed, (HOLDS, FAILS, FAILS), FAILS),
    "touched": (touched, EVERY, HOLDS),
    "a folder in its place": (folder_in_place, (UNKNOWN, UNKNOWN, UNKNOWN), FAILS),
    "unreadable": (unreadable, (HOLDS, UNKNOWN, UNKNOWN), FAILS),
    "unreadable and touched": (unreadable_and_touched, (UNKNOWN, UNKNOWN, UNKNOWN), FAILS),
    "does not fit the schema": (unfit, (HOLDS, HOLDS, FAILS), FAILS),
    "its verifier says no": (refused, (HOLDS, HOLDS, FAILS), FAILS),
    "its verifier raises": (raising, (HOLDS, HOLDS, UNKNOWN), UNKNOWN),
    "its verifier hangs": (hanging, (HOLDS, HOLDS, UNKNOWN), UNKNOWN),
    "its verifier gives no answer": (no_bool, (HOLDS, HOLDS, UNKNOWN), UNKNOWN),
}
"""What is to be said of it: when only looked at, when read, when its verifier is asked too; and by somebody who has no
record of it. The last does not know that bytes are other ones."""
THE_ODD = f"id = (SELECT id FROM outputs ORDER BY id LIMIT 1 OFFSET {ODD})"
GARBLED = "CAST(replace(CAST(data AS TEXT), 'page', 'p4ge') AS BLOB)"
STORED = {
    "other bytes": (sql(f"UPDATE outputs SET data = {GARBLED} WHERE {THE_ODD}"), (HOLDS, FAILS, FAILS)),
    "no bytes": (sql(f"UPDATE outputs SET data = NULL WHERE {THE_ODD}"), (FAILS, FAILS, FAILS)),
}
"""The same for outputs that the store holds. A run and its plan do not look at them when they look quickly."""


# -- the five who are asked --------------------------------------------------------------------------------------------


def by_run(world: World, verify: str) -> Verdict:
    world.calls.clear()
    report = run(world.pipeline(), range(COUNT), verify=verify, batch="book")
    if world.calls.seen:
        assert set(world.calls.seen) == {ODD}
        return FAILS
    assert report.this_run.rewound == 0
    return UNKNOWN if report.unverified else HOLDS


def by_plan(world: World, verify: str) -> Verdict:
    plan = world.pipeline().plan(range(COUNT), verify=verify, batch="book")
    if plan.counts["rewind"]:
        assert plan.counts["rewind"] == 1
        return FAILS
    return UNKNOWN if any("could not be verified" in note for note in plan.notes) else HOLDS


def by_reconciling(world: World, full: bool) -> Verdict:
    found = world.pipeline().reconcile("book", full=full)
    kinds = {finding.what for finding in found.findings if finding.key == ODD}
    assert len(kinds) == sum(found.found.values()) <= 1
    if not kinds:
        return HOLDS
    return UNKNOWN if kinds == {What.UNVERIFIED} else FAILS


def by_audit(world: World) -> bool:
    store = world.pipeline().store
    found = audit.verify(store, lookup.batch_named(store, "book"), full=True).findings
    assert {finding.kind for finding in found} <= {"output"}
    return not found


def by_recovery(world: World) -> Verdict:
    found = world.pipeline("new.db").recover(range(COUNT), by=BY, batch="book")
    if found.pending:
        return FAILS
    return UNKNOWN if found.unverified_count else HOLDS


@pytest.fixture
def rights() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Root obeys permissions, too."""
    with as_an_ordinary_user():
        yield nullcontext


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.promise("P4", "P5", "A14", "E12")
@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize(("spoil", "verdicts", "_unrecorded"), WAYS.values(), ids=WAYS)
def test_all_say_the_same_of_a_file(
    world: World, spoil: Callable[[World], None], verdicts: tuple[Verdict, Verdict, Verdict], _unrecorded: Verdict
) -> None:
    run(world.pipeline(), range(COUNT))
    spoil(world)
    check_recorded(world, verdicts)


@pytest.mark.promise("P5", "A14", "E12")
@pytest.mark.parametrize(("spoil", "verdicts"), STORED.values(), ids=STORED)
def test_all_say_the_same_of_an_output_in_the_store(
    spoil: Callable[[World], None], verdicts: tuple[Verdict, Verdict, Verdict]
) -> None:
    world = World(in_files=False)
    run(world.pipeline(), range(COUNT))
    spoil(world)
    check_recorded(world, verdicts)


@pytest.mark.promise("P12")
@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize(("spoil", "_recorded", "verdict"), WAYS.values(), ids=WAYS)
def test_what_is_found_without_a_record_is_held_against_schema_and_verifier(
    world: World, spoil: Callable[[World], None], _recorded: object, verdict: Verdict
) -> None:
    run(world.pipeline(), range(COUNT))
    spoil(world)
    knows = spoil in (other, other_unnoticed)
    assert by_recovery(world) is (HOLDS if knows else verdict)


@pytest.mark.promise("A14", "E12")
def test_all_say_the_same_of_a_name_that_a_newer_batch_has_taken(world: World) -> None:
    run(world.pipeline(), range(COUNT))
    of_another_batch(world)
    check_recorded(world, EVERY)
    store = world.pipeline().store
    assert world.pipeline().reconcile("book", full=True).observed.superseded == COUNT
    assert audit.verify(store, lookup.batch_named(store, "book"), full=True).superseded == COUNT


def check_recorded(world: World, verdicts: tuple[Verdict, Verdict, Verdict]) -> None:
    quick, full, verified = verdicts
    in_passing = quick if world.in_files else HOLDS
    said = {
        "plan": by_plan(world, "quick"), "reconcile": by_reconciling(world, full=False),
        "full reconcile": by_reconciling(world, full=True), "audit": by_audit(world),
        "full plan": by_plan(world, "full"),
    }  # fmt: skip
    assert said == {"plan": in_passing, "reconcile": quick, "full reconcile": full, "audit": full is HOLDS,
                    "full plan": verified}  # fmt: skip
    if in_passing is not FAILS:
        assert by_run(world, "quick") is in_passing
    assert by_run(world, "full") is verified
