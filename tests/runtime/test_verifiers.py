"""Verifiers look at the real world: before an item goes on, and at everything when asked for."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core.outcome import Lost
from holdfast.runtime.acts import Actor
from holdfast.runtime.engine.exchange import InputAnswer
from holdfast.runtime.engine.withheld import WithheldReturns
from holdfast.runtime.operate import operations
from holdfast.runtime.report import why
from tests.runtime.rehearsal import held, item
from tests.runtime.support import ONCE, SOON, Calls, codes, outputs, run

NAMES = ["scan", "index", "tag", "file"]


class Doc(BaseModel):
    key: int
    trail: list[str]


class World:
    """What the handlers leave outside, and what verifiers do there."""

    def __init__(self) -> None:
        self.rows: set[tuple[str, int]] = set()
        self.made = Calls()
        self.asked = Calls()
        self.closed = False
        """The last stage refuses its work: items stop before it."""
        self.trouble: Callable[[str, int], None] = lambda stage, key: None

    def define(self, book: hf.Pipeline) -> None:
        for name in NAMES:
            self.stage(book, name)

    def stage(self, book: hf.Pipeline, name: str) -> None:
        def handle(doc: Doc) -> Doc:
            if name == NAMES[-1] and self.closed:
                raise hf.Permanent("closed")
            self.made((name, doc.key))
            self.rows.add((name, doc.key))
            return Doc(key=doc.key, trail=[*doc.trail, name])

        stage = book.stage(name=name, retry=SOON)(handle)

        @stage.verify(timeout="10s")
        def is_there(out: Doc, item: Doc, ctx: hf.Context) -> bool:
            self.asked((name, out.key))
            self.trouble(name, out.key)
            assert (out.trail, item.key, ctx.key, ctx.stage) == ([*item.trail, name], out.key, out.key, name)
            return (name, out.key) in self.rows

    def lose(self, key: int, *names: str) -> None:
        self.rows -= {(name, key) for name in names}

    def made_of(self, key: int) -> list[str]:
        return [name for name, n in self.made.seen if n == key]


def docs(count: int) -> list[dict[str, Any]]:
    return [{"key": n, "trail": []} for n in range(count)]


def redrive(book: hf.Pipeline) -> None:
    (batch,) = book.store.batches("book")
    operations.redrive(book.store, batch, Actor(name="test", reason="continue"))


def place(book: hf.Pipeline, n: int) -> Any:
    (batch,) = book.store.batches("book")
    return book.store.items(batch.id, lo=n, hi=n + 1)[0].place


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def stopped(world: World, restart: Callable[..., hf.Pipeline]) -> Callable[[int], hf.Pipeline]:
    """A batch whose items all stand before their last stage."""

    def stop(count: int) -> hf.Pipeline:
        world.closed = True
        book = restart(world.define)
        assert run(book, docs(count), key="key", tolerate="100%").counts.dead == count
        redrive(book)
        world.closed = False
        world.made.clear()
        world.asked.clear()
        return restart(world.define)

    return stop


@pytest.mark.promise("A5")
def test_what_an_item_rests_on_is_asked_for_before_it_goes_on(world: World, stopped: Any) -> None:
    book = stopped(6)
    assert run(book).counts.done == 6
    assert [name for name, _ in world.made.seen] == ["file"] * 6, "nothing but the last stage was left to do"
    assert sorted(name for name, _ in world.asked.seen) == ["file"] * 6 + ["tag"] * 6
    for key in range(6):
        assert world.asked.seen.index(("tag", key)) < world.asked.seen.index(("file", key))


@pytest.mark.promise("A5", "A6", "A1")
@pytest.mark.parametrize(
    ("lost", "again"),
    [
        (["tag"], ["tag", "file"]),
        (["tag", "index"], ["index", "tag", "file"]),
        (["tag", "index", "scan"], ["scan", "index", "tag", "file"]),
        (["index"], ["file"]),
    ],
    ids=["the last", "the last two", "all", "one below what holds"],
)
def test_an_item_goes_back_to_the_last_stage_that_holds(
    world: World, stopped: Any, lost: list[str], again: list[str]
) -> None:
    book = stopped(4)
    world.lose(2, *lost)
    report = run(book)
    assert report.counts.done == 4
    assert world.made_of(2) == again
    assert all(world.made_of(key) == ["file"] for key in (0, 1, 3)), "no other item is touched"
    went_back = int(again != ["file"])
    assert (place(book, 2).epoch, place(book, 2).rewinds) == (went_back, went_back), "once, however far"
    assert report.this_run.rewound == went_back
    assert outputs(book)[2].trail == NAMES


@pytest.mark.promise("A5", "A6", "P4")
@pytest.mark.parametrize("lost", [["scan"], ["tag"], ["file"], ["index", "file"]], ids=" and ".join)
def test_full_looks_at_everything_that_is_recorded(
    world: World, restart: Callable[..., hf.Pipeline], lost: list[str]
) -> None:
    run(restart(world.define), docs(5), key="key")
    world.lose(3, *lost)
    world.made.clear()
    assert run(restart(world.define)).this_run.rewound == 0
    again = restart(world.define)
    assert run(again, verify="full").this_run.rewound == 1
    first = min(NAMES.index(name) for name in lost)
    assert world.made.seen == [(name, 3) for name in NAMES[first:]]
    assert (place(again, 3).epoch, again.report().counts.done) == (1, 5)


@pytest.mark.promise("A5")
@pytest.mark.parametrize(
    ("verify", "before", "all_recorded"), [("none", False, False), ("quick", True, False), ("full", True, True)]
)
def test_each_level_asks_what_it_says(
    world: World, restart: Callable[..., hf.Pipeline], verify: str, before: bool, all_recorded: bool
) -> None:
    world.closed = True
    book = restart(world.define)
    run(book, docs(1), key="key")
    world.closed = False
    run(book, docs(3), key="key")
    redrive(book)
    world.asked.clear()
    world.lose(0, "tag")
    world.lose(1, "tag")
    report = run(restart(world.define), verify=verify)
    assert report.counts.done == 3
    assert (("tag", 0) in world.asked.seen) == before, "item 0 was about to continue"
    assert (("tag", 1) in world.asked.seen) == all_recorded, "item 1 was done"
    assert (("tag", 0) in world.rows) == before
    assert (("tag", 1) in world.rows) == all_recorded


@pytest.mark.promise("A15")
def test_what_is_lost_again_and_again_is_buried_in_the_end(world: World, stopped: Any) -> None:
    book = stopped(2)
    for _ in range(3):
        world.lose(1, "tag")
        world.closed = True
        assert run(book).this_run.rewound == 1
        redrive(book)
    world.lose(1, "tag")
    report = run(book)
    letter = next(letter for letter in report.dead if letter.key == 1)
    assert (letter.code, letter.stage) == ("rewound_too_often", "tag"), "where its output has to be made again"
    assert "rewound 3 times" in letter.reason
    world.closed = False
    redrive(book)
    report = run(book)
    assert (report.counts.done, report.counts.dead) == (2, 0), "a redrive makes what was lost"
    assert ("tag", 1) in world.rows


# -- a verifier that gives no answer says nothing -------------------------------------------------------------------


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """What a verifier hangs on, until the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.promise("A6")
def test_a_verifier_that_raises_before_an_item_goes_on_undoes_nothing(world: World, stopped: Any) -> None:
    book = stopped(3)

    def raises(stage: str, key: int) -> None:
        if (stage, key) == ("tag", 1):
            raise LookupError("no such table")

    world.trouble = raises
    report = run(book)
    assert codes(report) == {1: "verifier_failed"}
    reason = report.dead[0].reason
    assert "the verifier of stage 'tag'" in reason
    assert "item 1" in reason
    assert "it raised LookupError: no such table" in reason
    assert (place(book, 1).stage, place(book, 1).epoch) == (3, 0), "it stays where it is"
    world.trouble = lambda stage, key: None
    redrive(book)
    assert run(book).counts.done == 3
    assert world.made_of(1) == ["file"]


@pytest.mark.promise("A6", "E3")
def test_a_verifier_that_may_answer_later_is_asked_again(world: World, stopped: Any) -> None:
    book = stopped(2)
    seen = Calls()

    def raises(stage: str, key: int) -> None:
        if stage == "tag" and seen((stage, key)) == 1:
            raise ConnectionError("the index is restarting")

    world.trouble = raises
    assert run(book).counts.done == 2
    assert sorted(seen.seen) == [("tag", 0), ("tag", 0), ("tag", 1), ("tag", 1)], "it is asked until it answers"
    assert [world.made_of(key) for key in (0, 1)] == [["file"], ["file"]]
    assert place(book, 0).epoch == 0


@pytest.mark.promise("A6")
def test_nothing_is_undone_while_it_is_unknown_how_far_back_to_go(world: World, stopped: Any) -> None:
    book = stopped(1)
    world.lose(0, "tag")

    def raises(stage: str, key: int) -> None:
        if stage == "index":
            raise LookupError("no such table")

    world.trouble = raises
    assert codes(run(book)) == {0: "verifier_failed"}
    assert (place(book, 0).stage, place(book, 0).epoch) == (3, 0)
    world.trouble = lambda stage, key: None
    redrive(book)
    assert run(book).counts.done == 1
    assert world.made_of(0) == ["tag", "file"]


def hanging(book: hf.Pipeline, hung: threading.Event, hangs: Callable[[int], bool], *, later: bool = False) -> None:
    if later:

        @book.stage(retry=ONCE)
        async def read(number: int) -> int:
            return number
    else:

        @book.stage(retry=ONCE)
        def read(number: int) -> int:
            return number

    @read.verify(timeout="1s")
    def look(out: int) -> bool:
        if hangs(out):
            hung.wait()
        return True


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
def test_a_verifier_that_hangs_after_the_handler_holds_up_nobody(
    book: hf.Pipeline, hung: threading.Event, later: bool
) -> None:
    hanging(book, hung, lambda number: number == 1, later=later)
    report = run(book, range(40), workers=2)
    assert codes(report) == {1: "verifier_failed"}
    assert "did not answer within 1 s" in report.dead[0].reason
    assert report.counts.done == 39


@pytest.mark.promise("A6")
def test_a_verifier_that_hangs_in_full_is_a_finding(restart: Callable[..., hf.Pipeline], hung: threading.Event) -> None:
    run(restart(lambda book: hanging(book, hung, lambda number: False)), range(40))
    report = run(restart(lambda book: hanging(book, hung, lambda number: number in (3, 30))), verify="full", workers=2)
    assert (report.counts.done, report.this_run.rewound, report.exit_code, report.unverified) == (40, 0, 1, 2)
    assert [finding.key for finding in report.findings] == [3, 30]
    assert not report.is_complete
    with pytest.raises(hf.Incomplete, match="2 outputs could not be verified"):
        report.raise_unless_complete()


def test_when_too_many_hang_no_more_are_asked(
    restart: Callable[..., hf.Pipeline], hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.define.calls.HUNG_CHECKS", 3)
    run(restart(lambda book: hanging(book, hung, lambda number: False)), range(200))
    asked = Calls()

    def hangs(number: int) -> bool:
        asked(number)
        return True

    report = run(restart(lambda book: hanging(book, hung, hangs)), verify="full", workers=1)
    assert (report.unverified, len(asked), len(report.findings)) == (200, 3, 20)
    assert report.warnings[-1] == "195 more could not be verified"


def test_a_timeout_that_cannot_be_is_refused(book: hf.Pipeline) -> None:
    stage = book.stage(name="look")(lambda value: value)
    with pytest.raises(hf.UsageError, match="must be more than 0 s"):
        stage.verify(timeout=0)(lambda out: True)


# -- too much at once is not undone unasked -------------------------------------------------------------------------


@pytest.mark.promise("A6")
def test_when_the_world_is_gone_nothing_is_undone_unasked(world: World, restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(world.define), docs(150), key="key")
    before, world.rows = world.rows, set()
    world.made.clear()
    again = restart(world.define)
    with pytest.raises(hf.UndoRefused, match=r'150 of 150 recorded items.*not mounted.*undo="100%"'):
        run(again, verify="full")
    assert not world.made.seen
    assert again.report().counts.done == 150
    world.rows = {row for row in before if row[1] >= 99}
    assert run(restart(world.define), verify="full").this_run.rewound == 99, "fewer than a hundred need no word"
    world.rows = set()
    assert run(restart(world.define), verify="full", undo="100%").this_run.rewound == 150
    assert len(world.rows) == 600


@pytest.mark.promise("A6")
def test_items_about_to_go_on_are_not_all_undone_unasked(world: World, stopped: Any) -> None:
    book = stopped(160)
    world.rows = set()
    with pytest.raises(hf.UndoRefused, match="recorded items"):
        run(book)
    assert not world.made.seen
    assert book.report().counts.pending == 160
    assert all(place(book, n).epoch == 0 for n in (0, 80, 159))
    report = run(book, undo="100%")
    assert (report.counts.done, report.this_run.rewound) == (160, 160)


def test_a_small_share_of_many_is_undone_without_a_word(world: World, stopped: Any) -> None:
    book = stopped(1500)
    for key in range(0, 1500, 11):
        world.lose(key, "tag")
    report = run(book)
    assert (report.counts.done, report.this_run.rewound) == (1500, 137)


def test_undo_may_allow_nothing(world: World, restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(world.define), docs(3), key="key")
    world.lose(1, "file")
    with pytest.raises(hf.UndoRefused, match="1 of 3"):
        run(restart(world.define), verify="full", undo=0)


# -- nothing but what was validated crosses -------------------------------------------------------------------------


@pytest.mark.promise("E16")
def test_whatever_is_changed_in_passing_nobody_else_sees(restart: Callable[..., hf.Pipeline]) -> None:
    def spoil(doc: Doc) -> None:
        doc.trail.append("spoilt")
        doc.key = 99

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def first(doc: Doc, ctx: hf.Context) -> Doc:
            made = Doc(key=doc.key, trail=["first"])
            spoil(doc)
            ctx.key = "another"
            return made

        @first.verify
        def look(out: Doc, item: Doc, ctx: hf.Context) -> bool:
            assert (out.trail, item.trail, item.key) == (["first"], [], 1)
            spoil(out)
            spoil(item)
            ctx.key = "another"
            return True

        @book.stage
        def second(doc: Doc, ctx: hf.Context) -> Doc:
            assert (ctx.key, doc.key, doc.trail) == (1, 1, ["first"])
            return doc

        @second.verify
        def look_again(out: Doc, item: Doc, ctx: hf.Context) -> bool:
            assert (out, item, ctx.key) == (Doc(key=1, trail=["first"]), Doc(key=1, trail=["first"]), 1)
            spoil(item)
            return True

    book = restart(define)
    assert run(book, docs(2)[1:], key="key").is_complete
    assert outputs(book) == {1: Doc(key=1, trail=["first"])}
    assert run(restart(define), verify="full").is_complete


# -- what a verifier may answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("raises", [False, True], ids=["returned", "raised"])
def test_a_verifier_may_give_its_reason(book: hf.Pipeline, raises: bool) -> None:
    @book.stage(retry=ONCE)
    def count(n: int) -> int:
        return n

    @count.verify
    def two(out: int) -> bool | hf.Bad:
        bad = hf.Bad(f"expected 2 rows, found {out}")
        if out != 2 and raises:
            raise bad
        return True if out == 2 else bad

    report = run(book, [1, 2])
    assert [(letter.code, letter.reason) for letter in report.dead] == [
        ("unverified", "the output of stage 'count' does not hold: expected 2 rows, found 1 (1 of 1 attempts used)")
    ]


@pytest.mark.promise("A5")
def test_the_reason_of_a_verifier_is_in_the_journal_of_what_went_back(
    world: World, restart: Callable[..., hf.Pipeline]
) -> None:
    run(restart(world.define), docs(2), key="key")
    world.trouble = lambda stage, key: _object(stage, key, world)
    again = restart(world.define)
    world.lose(1, "file")
    assert run(again, verify="full").this_run.rewound == 1
    (batch,) = again.store.batches("book")
    told = " ".join(str(event) for event in why.tell(again.store, batch, "1").events)
    assert "expected 1 row, found 0" in told


def _object(stage: str, key: int, world: World) -> None:
    if (stage, key) not in world.rows:
        raise hf.Bad("expected 1 row, found 0")


@pytest.mark.parametrize("answer", ["expected 2, found 1", "", None, 1, [True]], ids=repr)
def test_an_answer_that_is_neither_yes_nor_no_is_not_taken_for_one(book: hf.Pipeline, answer: Any) -> None:
    @book.stage(retry=ONCE)
    def count(n: int) -> int:
        return n

    @count.verify
    def odd(out: int) -> Any:
        return answer

    (letter,) = run(book, [1]).dead
    assert letter.code == "verifier_failed"
    assert "returns True, False, or hf.Bad(why)" in letter.reason


@pytest.mark.promise("A5", "A6")
def test_the_verifier_of_the_first_stage_is_asked_before_the_second(
    world: World, restart: Callable[..., hf.Pipeline]
) -> None:
    """As before any other: what the second stage would build on is gone, so the first one makes it again."""
    closed = True

    def define(book: hf.Pipeline) -> None:
        world.stage(book, "scan")

        @book.stage
        def index(doc: Doc) -> int:
            if closed:
                raise hf.Permanent("closed")
            assert ("scan", doc.key) in world.rows, "it was built on something that is gone"
            return doc.key

    book = restart(define)
    assert run(book, docs(3), key="key").counts.dead == 3
    redrive(book)
    world.lose(1, "scan")
    world.made.clear()
    closed = False
    report = run(restart(define), undo="100%")
    assert (report.counts.done, report.this_run.rewound) == (3, 1)
    assert world.made.seen == [("scan", 1)]


@pytest.mark.promise("A6")
def test_nothing_goes_back_while_verifiers_are_still_asked_about_others() -> None:
    """Perhaps nothing holds, because a folder is not mounted."""
    returns = WithheldReturns(is_open=False, allowed=0.1, workers=2, refusal=lambda *_: AssertionError())
    hold, gone = held(2), Lost(item(0), 0, "it is missing")
    hold.read([item(0), item(1)])
    hold.unasked.extend([item(0), item(1)])
    first, second = (effect.question for effect in returns.start([hold]))
    assert list(returns.take(InputAnswer(first, [], [gone]), [gone], 0.0)) == []
    returns.let_through([hold], nothing_left=True)
    assert hold.outcomes == []
    assert list(returns.take(InputAnswer(second, [item(1)], []), [], 0.0)) == []
    returns.let_through([hold], nothing_left=True)
    assert hold.outcomes == [gone]
