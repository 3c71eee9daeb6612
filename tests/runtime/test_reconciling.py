"""What a batch should have, what is recorded and what is there, compared: every difference is found, nothing else is,
and no output is touched by looking at it."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.core.canonical import decode
from holdfast.core.model import Claim, ClaimRequest, State
from holdfast.core.verify import What
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.engine import ingester, source_keys
from holdfast.runtime.operate import operations, repair
from holdfast.runtime.report import lifecycle
from holdfast.runtime.report.reconcile import reconcile, repairable
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.verify import observe
from holdfast.stores.base import each_item, each_output
from holdfast.stores.memory import MemoryStore
from tests.operations.world import Clock, World
from tests.operations.world import done as item_done
from tests.runtime.support import Calls, run

COUNT = 40
BY = Actor(name="op", reason="for the test")
Pair = tuple[str, Any]


def define(book: hf.Pipeline) -> None:
    """Two stages, the second with files; one item in ten dies, another is skipped."""

    @book.stage
    def read(number: int) -> int:
        if number % 10 == 3:
            raise hf.Permanent("unlucky")
        return number

    @book.stage(sink=hf.Files("out/page_{key:04d}.json"))
    def write(number: int) -> dict[str, int]:
        if number % 10 == 4:
            raise hf.Skip("blank")
        return {"number": number}


def page(number: int) -> Path:
    return Path(f"out/page_{number:04d}.json")


def found_in(book: hf.Pipeline, **options: Any) -> Counter[Pair]:
    """(kind, item or file) of everything that was found."""
    result = book.reconcile(**options)
    pairs = Counter((f.what.value, f.key if f.key is not None else f.file) for f in result.findings)
    assert pairs.total() == sum(result.found.values())
    assert sum(result.counts[name] for name in ("done", "skipped", "dead", "cancelled", "pending")) == COUNT
    return pairs


def everything() -> dict[str, tuple[bytes, int, int]]:
    """Every file with its bytes, its time and its inode."""
    paths = (path for path in Path("out").rglob("*") if path.is_file())
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_ino) for p in paths}


@pytest.fixture
def finished(book: hf.Pipeline) -> hf.Pipeline:
    define(book)
    run(book, range(COUNT), tolerate=COUNT)
    return book


# -- differences -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A14", "P5")
@pytest.mark.parametrize("full", [False, True])
def test_a_batch_that_came_to_its_end_is_explained(finished: hf.Pipeline, full: bool) -> None:
    found = finished.reconcile(items=range(COUNT), full=full)
    assert found.is_explained
    assert found.counts == {"expected": 40, "done": 32, "skipped": 4, "dead": 4, "cancelled": 0, "pending": 0}
    assert (found.expected.keys, found.observed.files, found.end) == (40, 32, "complete with dead letters")
    assert (found.exit_code(), found.exit_code(tolerated=4)) == (1, 0)


class Vandal:
    """Does something to the outside world, and says what has to be found."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        numbers = [n for n in range(COUNT) if n % 10 not in (3, 4)]
        self.numbers = iter(self.chance.sample(numbers, len(numbers)))

    def go(self) -> Counter[Pair]:
        ways = [self.delete, self.cut, self.alter, self.exchange, self.put_a_folder, self.rename, self.add, self.copy,
                self.touch]  # fmt: skip
        return sum((self.chance.choice(ways)() for _ in range(self.chance.randint(1, 6))), Counter[Pair]())

    def delete(self) -> Counter[Pair]:
        page(n := next(self.numbers)).unlink()
        return Counter([("missing", n)])

    def cut(self) -> Counter[Pair]:
        path = page(n := next(self.numbers))
        path.write_bytes(path.read_bytes()[:-3])
        return Counter([("different", n)])

    def alter(self) -> Counter[Pair]:
        path = page(n := next(self.numbers))
        path.write_bytes(path.read_bytes().replace(b"number", b"nUmber"))
        return Counter([("different", n)])

    def exchange(self) -> Counter[Pair]:
        """Another file of the same size and time."""
        path = page(n := next(self.numbers))
        data, info = path.read_bytes().replace(b"number", b"nUmber"), path.stat()
        Path("new").write_bytes(data)
        os.utime("new", ns=(info.st_atime_ns, info.st_mtime_ns))
        Path("new").rename(path)
        return Counter([("different", n)])

    def put_a_folder(self) -> Counter[Pair]:
        path = page(n := next(self.numbers))
        path.unlink()
        path.mkdir()
        return Counter([("unverified", n)])

    def rename(self) -> Counter[Pair]:
        page(n := next(self.numbers)).rename(page(9_000 + n))
        return Counter([("missing", n), ("extra", str(page(9_000 + n)))])

    def add(self) -> Counter[Pair]:
        path = page(8_000 + next(self.numbers))
        path.write_text("mine")
        return Counter([("extra", str(path))])

    def copy(self) -> Counter[Pair]:
        """A copy put back from a backup is the same output."""
        path = page(next(self.numbers))
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        return Counter()

    def touch(self) -> Counter[Pair]:
        os.utime(page(next(self.numbers)))
        Path("out/notes.txt").write_text("no name of an output")
        return Counter()


@pytest.mark.promise("A14", "P5", "P15")
@pytest.mark.parametrize("seed", range(6))
def test_every_planted_difference_is_found_and_nothing_else_and_no_file_is_touched(
    seed: int, finished: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Vandal(seed).go()
    before = everything()
    assert found_in(finished) == planted
    assert found_in(finished, full=True) == planted
    monkeypatch.setattr(observe, "NAMES_HELD", 7)  # the folder is read several times
    assert found_in(finished) == planted
    assert everything() == before


@pytest.mark.promise("P5", "A8")
def test_a_change_that_keeps_size_time_and_inode_is_found_by_reading(finished: hf.Pipeline) -> None:
    info = page(7).stat()
    page(7).write_bytes(page(7).read_bytes().replace(b"7", b"8"))
    os.utime(page(7), ns=(info.st_atime_ns, info.st_mtime_ns))
    assert found_in(finished) == Counter()
    assert found_in(finished, full=True) == Counter([("different", 7)])


@pytest.mark.promise("P5", "A8")
def test_an_output_in_the_store_that_is_not_what_the_journal_recorded_is_found_by_reading() -> None:
    store = MemoryStore()
    book = hf.Pipeline("book", store=store)

    @book.stage
    def read(number: int) -> int:
        return number

    run(book, range(5))
    ((at, output), *_) = store._outputs.items()
    store._outputs[at] = type(output)(output.n, output.stage, output.epoch, b"99", None)
    assert book.reconcile().is_explained
    (finding,) = book.reconcile(full=True).findings
    assert (finding.what, finding.n) == (What.DIFFERENT, output.n)
    del store._outputs[at]
    first, *_, total = book.reconcile().findings
    assert (first.what, first.n, total.what) == (What.MISCOUNTED, output.n, What.MISCOUNTED)


@pytest.mark.promise("A14")
def test_totals_that_are_not_those_of_the_items_are_found() -> None:
    store = MemoryStore()
    book = hf.Pipeline("book", store=store)

    @book.stage
    def read(number: int) -> int:
        if number == 3:
            raise hf.Skip("blank")
        return number

    run(book, range(5))
    chunk = next(c for c in store._chunks.values() if c.counts.skipped)
    counts = type(chunk.counts)(done=chunk.counts.done + 1)
    store._chunks[chunk.id] = replace(chunk, counts=counts)
    found = book.reconcile()
    assert found.found.keys() >= {What.MISCOUNTED}
    assert any("the chunks count 5 items as done" in finding.why for finding in found.findings)


@pytest.mark.promise("A14")
def test_the_source_is_compared_with_the_store_in_both_directions(finished: hf.Pipeline) -> None:
    wanted = Counter([("never created", "77"), ("unknown", 0), ("unknown", 1)])
    assert found_in(finished, items=[*range(2, COUNT), 77, 77, 5]) == wanted, "what comes twice is one item"


def test_the_keys_of_a_source_are_looked_up_in_groups(finished: hf.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    known = type(finished.store).known

    def counted(store: Any, batch: Any, items: Any) -> Any:
        asked.append(len(items))
        return known(store, batch, items)

    monkeypatch.setattr(type(finished.store), "known", counted)
    monkeypatch.setattr(source_keys, "GROUP", 15)
    assert finished.reconcile(items=iter(range(COUNT))).is_explained
    assert asked == [15, 15, 10]
    asked.clear()
    monkeypatch.setattr(ingester, "INGEST_BYTES", 4)  # pages of two digits: two of them are enough
    assert finished.reconcile(items=iter(range(10, COUNT))).found == {What.UNKNOWN: 10}
    assert asked == [2] * 15, "fewer at a time where they are large"


def test_a_source_that_cannot_be_compared_is_refused_where_it_was_given() -> None:
    book = hf.Pipeline("book", store="memory:", source=lambda: iter("ab"))

    @book.stage
    def read(letter: str) -> str:
        return letter

    run(book, identity="new")
    assert book.reconcile().expected.keys is None
    with pytest.raises(hf.UsageError, match="cannot be compared"):
        book.reconcile(items=["a"])
    with pytest.raises(hf.UsageError, match="no batch 'other'"):
        book.reconcile("other")


def test_a_generator_that_was_used_up_is_not_taken_for_an_empty_source(book: hf.Pipeline) -> None:
    def letters() -> Iterator[str]:
        yield from "abc"

    other = hf.Pipeline("other", store=book.store, source=letters())

    @other.stage
    def read(letter: str) -> str:
        return letter

    run(other)
    assert other.reconcile().is_explained


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A14", "A8")
def test_an_output_that_was_recorded_and_never_named_is_published(finished: hf.Pipeline) -> None:
    batch = lookup.batch_named(finished.store, "book")
    output = next(o for o in each_output(finished.store, batch.id, stage=1) if o.n == 7)
    assert output.file is not None
    evidence = Evidence.decode(output.file)
    Path(evidence.final).rename(evidence.staged)
    before = everything()
    before[evidence.final] = before.pop(evidence.staged)
    found = finished.reconcile()
    assert (found.is_explained, found.observed.published) == (True, 1)
    assert everything() == before
    assert finished.reconcile().observed.published == 0


@pytest.mark.promise("P15")
def test_an_output_that_nothing_rests_on_any_more_is_left_as_it_is(finished: hf.Pipeline) -> None:
    """Its item went back: neither does the old file get a final name now, nor is it called missing."""
    batch = lookup.batch_named(finished.store, "book")
    output = next(o for o in each_output(finished.store, batch.id, stage=1) if o.n == 7)
    assert output.file is not None
    evidence = Evidence.decode(output.file)
    Path(evidence.final).rename(evidence.staged)
    page(8).unlink()
    for number in ("7", "8"):
        operations.reset(finished.store, batch, BY, number)
    before = everything()
    for full in (False, True):
        found = finished.reconcile(full=full)
        assert (found.unexplained, found.observed.published) == (("2 pending",), 0)
    assert everything() == before


@pytest.mark.promise("A14")
def test_two_items_whose_files_share_a_name_are_found(book: hf.Pipeline) -> None:
    @book.stage(sink=hf.Files("out/{key}.json"))
    def one(key: str) -> str:
        return key

    @book.stage(sink=hf.Files("out/{key}.x.json"))
    def two(key: str) -> str:
        return "two"

    report = run(book, ["1", "1.x", "2"], workers=1)
    assert (report.state, report.exit_code) == ("finished with findings", 1)
    found = {(f.what, f.key, f.stage) for f in book.reconcile().findings}
    assert found >= {(What.DUPLICATED, "1", 1), (What.DUPLICATED, "1.x", 0)}
    assert {key for _, key, _ in found} == {"1", "1.x"}


def staged_again(evidence: Evidence, *, digest: str = "") -> Path:
    """The name under which another owner, with another fence, would have staged the output of that item."""
    origin, _, kept, *rest = evidence.staged.rsplit(".", 4)
    return Path(".".join([origin, "99", digest or kept, *rest]))


@pytest.mark.promise("A14", "P15")
def test_what_an_owner_staged_that_was_fenced_out_is_a_leftover_and_keeps_no_batch_from_its_seal(
    finished: hf.Pipeline,
) -> None:
    batch = lookup.batch_named(finished.store, "book")
    outputs = {o.n: o.file for o in each_output(finished.store, batch.id, stage=1)}
    same, other = (Evidence.decode(outputs[n]) for n in (7, 8))  # type: ignore[arg-type]
    Path(same.staged).write_bytes(page(7).read_bytes())
    found = finished.reconcile()
    assert (found.is_explained, found.observed.leftovers) == (True, 0), "this very name is recorded: a late rename"
    Path(same.staged).rename(staged_again(same))
    staged_again(other, digest="0" * 32).write_text("something else")
    before = everything()
    found = finished.reconcile()
    assert (found.unexplained, found.observed.leftovers) == ((), 2)
    assert found.as_dict()["observed"]["leftovers"] == 2
    assert lifecycle.seal(finished.store, batch, found, actor="op", tolerated=COUNT).sealed_at is not None
    assert everything() == before, "nothing is deleted"


@pytest.mark.promise("A14")
def test_a_staged_output_of_an_item_that_has_none_recorded_is_extra(finished: hf.Pipeline) -> None:
    batch = lookup.batch_named(finished.store, "book")
    output = next(o for o in each_output(finished.store, batch.id, stage=1) if o.n == 5)
    assert output.file is not None
    evidence = Evidence.decode(output.file)
    name = Path(evidence.staged).name.replace(".5.0.", ".4.0.", 1)  # which was skipped at this stage
    (Path(evidence.staged).parent / name).write_text("paid for, and recorded nowhere")
    assert found_in(finished) == Counter([("extra", 4)])
    assert finished.reconcile().observed.leftovers == 0
    operations.reset(finished.store, lookup.batch_named(finished.store, "book"), BY, "4")
    assert What.EXTRA not in finished.reconcile().found, "the next run of the item may adopt it"


@pytest.mark.promise("A14")
@pytest.mark.parametrize(
    "template", ["out/{key}.json", "out/{key}/text.json", "out/{batch}/{stage}-{key}.json", "{key}.o"]
)
def test_files_of_another_batch_and_hidden_ones_are_nobodys_business(template: str, folder: Path) -> None:
    def book_of(template: str) -> hf.Pipeline:
        made = hf.Pipeline("book", store=folder / "state.db")

        @made.stage(sink=hf.Files(template))
        def write(key: str) -> str:
            return key

        return made

    book = book_of(template)
    run(book, ["a", "b"], batch="one")
    other = book_of(template if "{batch}" in template else template.replace("{key}", "{key}~"))
    run(other, ["c", "..", "ä/ö", "x" * 300], batch="two")
    Path("out").mkdir(exist_ok=True)
    Path("out/.hidden").write_text("")
    assert book.reconcile("one").is_explained
    assert book.reconcile("two").is_explained
    extra = Path(template.format(key="zzz", batch="one", stage="write"))
    extra.parent.mkdir(parents=True, exist_ok=True)
    extra.write_text("extra")
    assert [f.file for f in book.reconcile("one").findings] == [str(extra)]


# -- repair -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P15", "P4")
def test_a_repair_sends_back_exactly_what_is_wrong_and_deletes_nothing(finished: hf.Pipeline) -> None:
    store, batch = finished.store, lookup.batch_named(finished.store, "book")
    page(1).unlink()
    page(2).write_text("broken")
    page(500).write_text("extra")
    before = everything()
    look = repairable(store, batch, None, "quick")
    wanted = repair.preview_repair(store, batch, reconcile(store, batch), look)
    assert (wanted.items, wanted["by_stage"], wanted.left_alone) == (2, {"write": 2}, {"extra": 1})
    repair.check_share(wanted, 0.10)
    assert repair.repair(store, batch, look, BY).changed == 2
    assert repair.repair(store, batch, look, BY).changed == 0, "done again, it changes nothing"
    assert everything() == before
    pending = list(each_item(store, batch.id, state=State.PENDING))
    assert [(item.key, item.place.stage, item.place.epoch) for item in pending] == [(1, 1, 1), (2, 1, 1)]
    run(finished, tolerate=COUNT)
    assert found_in(finished) == Counter([("extra", str(page(500)))])


@pytest.mark.promise("P4", "A11")
def test_a_repair_takes_from_the_dead_and_not_from_the_living(book: hf.Pipeline) -> None:
    @book.stage(sink=hf.Files("out/{key}.txt"))
    def write(number: int) -> str:
        return f"page {number}"

    @book.stage
    def send(text: str) -> str:
        raise hf.Permanent("closed")

    run(book, range(2))
    store, batch = book.store, lookup.batch_named(book.store, "book")
    operations.redrive(store, batch, BY)
    look = repairable(store, batch, None, "quick")
    Path("out/1.txt").unlink()
    for seconds, sent in ((30.0, 0), (-1.0, 1)):
        assert isinstance(store.claim(ClaimRequest(batch=batch.id, owner="worker", limit=9, seconds=seconds)), Claim)
        assert repair.repair(store, batch, look, BY).changed == sent
        operations.reset(store, batch, BY, "0", to_stage="send")  # which takes the chunk from its owner


@pytest.mark.promise("P15")
def test_much_is_not_undone_without_being_told_so(book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    define(book)
    run(book, range(COUNT), tolerate=COUNT)
    monkeypatch.setattr("holdfast.core.verify.UNDO_ITEMS", 2)
    batch = lookup.batch_named(book.store, "book")
    Path("out").rename("elsewhere")
    findings = repairable(book.store, batch, None, "quick")
    wanted = repair.preview_repair(book.store, batch, reconcile(book.store, batch), findings)
    with pytest.raises(
        hf.Refused, match=r"32 items .* 100% of the 32 that are done, and at most 10% is allowed: check"
    ):
        repair.check_share(wanted, 0.10)
    repair.check_share(wanted, 1.0)
    assert book.report().counts.pending == 0


# -- the end ----------------------------------------------------------------------------------------------------------


def heard(book: hf.Pipeline) -> list[Any]:
    return [decode(event.body) for event in book.store.events() if event.kind == "batch.finished"]


@pytest.mark.promise("A14")
def test_the_end_is_published_once_and_again_only_after_the_batch_was_at_work_again(finished: hf.Pipeline) -> None:
    counts = {"expected": 40, "done": 32, "skipped": 4, "dead": 4, "cancelled": 0, "pending": 0}
    assert heard(finished) == [{"end": "complete with dead letters", "counts": counts}]
    run(finished, range(COUNT))
    finished.reconcile()
    finished.reconcile(full=True)
    assert len(heard(finished)) == 1
    operations.reset(finished.store, lookup.batch_named(finished.store, "book"), BY, "#7")
    assert len(heard(finished)) == 1
    run(finished)
    assert heard(finished) == [{"end": "complete with dead letters", "counts": counts}] * 2


@pytest.mark.promise("A14")
def test_no_end_is_published_while_anything_is_unexplained(book: hf.Pipeline) -> None:
    define(book)
    write = book.stages[1]

    @write.after
    def lose_one() -> None:
        page(7).unlink(missing_ok=True)

    report = run(book, range(COUNT), tolerate=COUNT)
    assert (report.state, report.exit_code, report.is_complete) == ("finished with findings", 1, False)
    assert "1 missing" in report.why
    assert "finding  missing: out/page_0007.json" in str(report)
    assert heard(book) == []
    with pytest.raises(hf.Incomplete, match="1 missing"):
        report.raise_unless_complete()
    write.hooks.after.functions.clear()
    report = run(book, range(COUNT), tolerate=COUNT)
    assert (report.exit_code, report.this_run.done) == (0, 1)
    assert len(heard(book)) == 1


@pytest.mark.promise("A14")
def test_an_interrupted_batch_has_no_end(book: hf.Pipeline) -> None:
    define(book)
    report = run(book, range(COUNT), deadline="1ms")
    assert report.exit_code == 75
    assert heard(book) == []
    assert report.reconciliation is None
    found = book.reconcile()
    assert found.unexplained[-1] == "more items may come: no source was read to its end, nor was it closed"


@pytest.mark.promise("A14")
def test_a_run_with_nothing_left_to_do_looks_at_no_output_twice(
    finished: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs in the store are not read at all; files are looked at by the check at the beginning, and not again."""
    monkeypatch.setattr(hf.Files, "changed", lambda *_, **__: pytest.fail("looked at again"))
    run(finished, range(COUNT), tolerate=COUNT)
    plain = hf.Pipeline("plain", store=finished.store)

    @plain.stage
    def read(number: int) -> int:
        if number == 3:
            raise hf.Skip("blank")
        return number

    monkeypatch.setattr(type(plain.store), "outputs", lambda *_, **__: pytest.fail("outputs were read"))
    assert run(plain, range(5)).exit_code == 0
    assert run(plain, range(5)).exit_code == 0
    assert len(heard(plain)) == 2


@pytest.mark.parametrize("pipelines", ["none", "quick"])
def test_what_nobody_wants_to_have_verified_is_not_looked_at(finished: hf.Pipeline, pipelines: Any) -> None:
    page(7).unlink()
    report = run(finished, range(COUNT), tolerate=COUNT, verify=pipelines)
    assert report.this_run.done == (0 if pipelines == "none" else 1)
    assert report.exit_code == 0


def test_the_calls_of_handlers_are_not_changed_by_reconciling(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()

    def counting(book: hf.Pipeline) -> None:
        @book.stage(sink=hf.Files("out/{key}.json"))
        def write(number: int) -> int:
            calls(number)
            return number

    book = restart(counting)
    run(book, range(3))
    book.reconcile(full=True)
    run(restart(counting), range(3), seal=True)
    assert sorted(calls.seen) == [0, 1, 2]


# -- beside a worker --------------------------------------------------------------------------------------------------


def while_it_looks(world: World, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker finish its item after that verb of the store was first asked."""
    real, claim, at_work = getattr(world.store, verb), world.claim(), [True]

    def overtaken(*args: Any, **named: Any) -> Any:
        answer = real(*args, **named)
        if at_work and at_work.pop():
            world.commit(claim, [item_done(each) for each in world.store.load(claim, None, 10, 1 << 30)])
        return answer

    monkeypatch.setattr(world.store, verb, overtaken)


@pytest.mark.promise("A14")
@pytest.mark.parametrize("verb", ["chunks", "outputs"])
def test_an_item_that_is_finished_while_somebody_looks_is_not_taken_for_damage(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    world = World(MemoryStore(clock=clock), clock, stages=("read",))
    world.add("a")
    while_it_looks(world, verb, monkeypatch)
    if verb == "chunks":
        assert reconcile(world.store, world.batch, how="quick").found == {}
    else:  # and without a second look at the whole batch
        seen = observe.Observer(world.store, world.batch, world.store.chunks(world.id), {}, "quick")
        assert list(seen.findings()) == []


def test_a_key_that_the_source_gives_twice_is_one_key(finished: hf.Pipeline) -> None:
    found = finished.reconcile(items=[*range(COUNT), 1, 2])
    assert (found.expected.keys, found.is_explained) == (COUNT, True)
