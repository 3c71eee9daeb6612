"""Resets, clones, exports, imports, claims and commits in random stories: fences never fall, and cursors move only by
commits and by acts that the journal tells of."""

import json
import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from holdfast.core import acts as core_acts
from holdfast.core import canonical, cursor, ingest, record
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Conflict
from holdfast.core.model import Batch, Claim, ClaimRequest, Kind, State
from holdfast.core.settle import NOTHING, Reached, commit
from holdfast.runtime.operate import clones, state_document
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.partitions import IMPORTED, history, standings
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import holder_of
from tests.operations.scanned import BY
from tests.operations.world import Clock

DEFINITION = canonical.encode({"stages": [{"name": "scan", "source": {"kind": "rows"}}], "keyed": "the field 'range'"})
PHASES = [Phase.generate]
SIZE = 100
PARTS = 2
SETTINGS = settings(max_examples=40, stateful_step_count=25, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow])  # fmt: skip

Where = tuple[int, str, Any]
"""Rows, cursor and accumulator of a partition."""


class Stories(RuleBasedStateMachine):
    """Batches in one store, with what must be true of them beside it."""

    make: Callable[[Clock], Store]

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.store = type(self).make(self.clock)
        self.names: list[str] = []
        self.fences: dict[int, int] = {}
        self.expected: dict[tuple[str, Any], Where] = {}
        self.moves: dict[tuple[str, Any], int] = {}
        self.claims: list[tuple[str, Claim, int]] = []
        self.saved: list[tuple[str, bytes, dict[Any, set[int]]]] = []
        self.handled: dict[tuple[str, Any], set[int]] = {}
        """Rows of each partition that were handled and not undone, from 0."""
        self.count = 0
        batch = self.store.open_batch("first", "totals", DEFINITION, actor="test")
        items = [ingest.admit(n, _payload(n)) for n in range(PARTS)]
        self.store.add_items(batch.id, items, ended=True, actor="test", kind=Kind.PARTITIONS)
        self._know("first")

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    def _know(self, name: str) -> None:
        self.names.append(name)
        for at in standings(self.store, self._batch(name)):
            self.expected[name, at.key] = _where(at)
            self.handled.setdefault((name, at.key), set())
            self.moves[name, at.key] = sum(1 for _ in history(self.store, self._batch(name), at.n))

    def _batch(self, name: str) -> Batch:
        (found,) = self.store.batches(name)
        return found

    def _new_name(self) -> str:
        self.count += 1
        return f"copy-{self.count}"

    # -- what workers do ------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 3))
    def claim(self, which: int) -> None:
        name = self.names[which % len(self.names)]
        want = ClaimRequest(batch=self._batch(name).id, owner=f"h/b/n/1/2/{len(self.claims)}", limit=1, seconds=30.0)
        answer = self.store.claim(want)
        if isinstance(answer, Claim):
            assert answer.lease.fence > self.fences.get(answer.lease.chunk, 0)
            self.claims.append((name, answer, 0))

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 9), rows=st.integers(1, 30))
    def commit(self, which: int, rows: int) -> None:
        """A checkpoint under some grant, be it the current one or one that was taken away long ago."""
        which %= len(self.claims)
        name, claim, version = self.claims[which]
        chunk = next(each for each in self.store.chunks(claim.batch) if each.id == claim.lease.chunk)
        items = self.store.load(claim, None, 1, 1 << 20)
        if not items:
            return
        key = items[0].key
        lo, _ = _borders(int(key))
        done, where, _ = self.expected[name, key]
        begin = 0 if where is None else where.value - lo
        end = min(SIZE, begin + rows)
        total, to = done + end - begin, Cursor("row", lo + end)
        at = Reached(item=items[0], rows=total, cursor=cursor.encode(to), acc=b"%d" % total)
        holder = holder_of(claim, version, 30.0)
        written = commit(holder, NOTHING, commit_id=os.urandom(16), release=False, reached=[at])
        landed = self.store.commit([written])[0].landed
        assert landed == (chunk.owner is not None and (chunk.fence, chunk.version) == (claim.lease.fence, version))
        if landed:
            self.claims[which] = (name, claim, version + 1)
            self.expected[name, key] = (total, to, total)
            self.handled[name, key] |= set(range(begin, end))
            self.moves[name, key] += 1

    @rule(seconds=st.sampled_from([1, 29, 31]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    # -- what operators do ----------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 3), part=st.integers(0, PARTS - 1))
    def to_beginning(self, which: int, part: int) -> None:
        name = self.names[which % len(self.names)]
        plan = acts.to_beginning(self.store, self._batch(name), str(part))
        self.handled[name, part] = set()
        self._carry_out(name, part, plan, (0, None, None))

    @rule(which=st.integers(0, 3), part=st.integers(0, PARTS - 1), row=st.integers(0, SIZE), keep=st.booleans())
    def to_cursor(self, which: int, part: int, row: int, keep: bool) -> None:
        name = self.names[which % len(self.names)]
        lo, _ = _borders(part)
        rows, _, acc = self.expected[name, part]
        how = "keep" if keep else "drop"
        plan = acts.to_cursor(self.store, self._batch(name), str(part), str(lo + row), (), acc=how)
        (turn,) = plan.parts
        assert turn.to is not None
        left = {each for each in self.handled[name, part] if each < row}
        if turn.shift.exact:
            assert turn.to.rows == len(left), "an exact number of rows is the number of rows"
            assert turn.shift.again == rows - len(left)
        assert turn.to.rows <= len(left)
        self.handled[name, part] = set(sorted(left)[: turn.to.rows])
        self._carry_out(name, part, plan, (turn.to.rows, Cursor("row", lo + row), acc if keep else None))

    @rule(which=st.integers(0, 3))
    def break_leases(self, which: int) -> None:
        name = self.names[which % len(self.names)]
        acts.carry_out(self.store, self._batch(name), acts.to_same(self.store, self._batch(name)), BY)
        assert all(chunk.owner is None for chunk in self.store.chunks(self._batch(name).id))

    @rule(which=st.integers(0, 3))
    def export(self, which: int) -> None:
        name = self.names[which % len(self.names)]
        data = json.dumps(state_document.document(self.store, self._batch(name))).encode()
        self.saved.append((name, data, {part: set(self.handled[name, part]) for part in range(PARTS)}))

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 9))
    def put_back(self, which: int) -> None:
        name, data, handled = self.saved[which % len(self.saved)]
        plan = acts.to_state(self.store, self._batch(name), data, "saved.json", kind=IMPORTED)
        for part in json.loads(data)["partitions"]:
            self._tell(name, part["key"], plan, _said(part))
            self.handled[name, part["key"]] = set(handled[part["key"]])
        acts.carry_out(self.store, self._batch(name), plan, BY)
        self._settle(name)

    @precondition(lambda self: self.saved and len(self.names) < 4)
    @rule(which=st.integers(0, 9))
    def plant(self, which: int) -> None:
        _, data, handled = self.saved[which % len(self.saved)]
        name = self._new_name()
        clones.make(self.store, clones.from_state(self.store, data, "saved.json", name), BY)
        highest = max(part["lease"]["fence"] for part in json.loads(data)["partitions"])
        assert all(chunk.fence > highest for chunk in self.store.chunks(self._batch(name).id))
        self._know(name)
        for part in json.loads(data)["partitions"]:
            assert self.expected[name, part["key"]] == _said(part), "an imported state is the one that was exported"
            self.handled[name, part["key"]] = set(handled[part["key"]])

    @precondition(lambda self: len(self.names) < 4)
    @rule(which=st.integers(0, 3))
    def clone(self, which: int) -> None:
        name, new = self.names[which % len(self.names)], self._new_name()
        clones.make(self.store, clones.clone(self.store, self._batch(name), new), BY)
        highest = max(chunk.fence for chunk in self.store.chunks(self._batch(name).id))
        assert all(chunk.fence > highest for chunk in self.store.chunks(self._batch(new).id))
        self._know(new)
        for part in range(PARTS):
            assert self.expected[new, part] == self.expected[name, part]
            self.handled[new, part] = set(self.handled[name, part])

    def _carry_out(self, name: str, part: int, plan: acts.CursorPlan, to: Where) -> None:
        self._tell(name, part, plan, to)
        acts.carry_out(self.store, self._batch(name), plan, BY)
        self._settle(name)

    def _tell(self, name: str, part: Any, plan: acts.CursorPlan, to: Where) -> None:
        (turn,) = [each for each in plan.parts if each.at.key == part]
        assert turn.to is not None
        self.expected[name, part] = to

    def _settle(self, name: str) -> None:
        """How many acts the journal tells of is read once; from then on, it must not grow by itself."""
        for at in standings(self.store, self._batch(name)):
            self.moves[name, at.key] = sum(1 for _ in history(self.store, self._batch(name), at.n))

    # -- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def fences_never_fall(self) -> None:
        for name in getattr(self, "names", ()):
            for chunk in self.store.chunks(self._batch(name).id):
                assert chunk.fence >= self.fences.get(chunk.id, 0)
                self.fences[chunk.id] = chunk.fence

    @invariant()
    def cursors_stand_where_commits_and_acts_left_them(self) -> None:
        for name in getattr(self, "names", ()):
            for at in standings(self.store, self._batch(name)):
                assert _where(at) == self.expected[name, at.key]
                past = list(history(self.store, self._batch(name), at.n))
                assert len(past) == self.moves[name, at.key]
                assert at.place.state is State.PENDING
                if past:
                    last = past[-1]
                    assert (last.rows, last.cursor) == (at.rows, b"" if at.checkpoint is None else at.checkpoint.cursor)


def _payload(n: int) -> bytes:
    lo, hi = (cursor.to_plain(Cursor("row", each)) for each in _borders(n))
    return canonical.encode({"range": n, "after": lo, "until": hi, "rows": SIZE})


def _borders(n: int) -> tuple[int, int]:
    return n * SIZE, (n + 1) * SIZE


def _where(at: Any) -> Where:
    return (at.rows, at.cursor, None if at.acc is None else json.loads(at.acc))


def _said(part: dict[str, Any]) -> Where:
    at = part["checkpoint"]
    if at is None:
        return (0, None, None)
    return (at["rows"], None if at["cursor"] is None else cursor.from_plain(at["cursor"]), at["acc"])


class InMemory(Stories):
    make = staticmethod(lambda clock: MemoryStore(clock=clock))  # type: ignore[assignment]


@pytest.mark.promise("C3", "C15", "C16")
def test_any_story_in_memory() -> None:
    run_state_machine_as_test(InMemory, settings=SETTINGS)


@pytest.mark.promise("C3", "C15", "C16")
def test_any_story_in_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    class InFile(Stories):
        make = staticmethod(  # type: ignore[assignment]
            lambda clock: SqliteStore(tmp_path_factory.mktemp("stories") / "state.db", clock=clock)
        )

    run_state_machine_as_test(InFile, settings=settings(SETTINGS, max_examples=12))


def _fence_stays(apply: Any) -> Any:
    return lambda act, chunk, changes, places: replace(apply(act, chunk, changes, places), fence=chunk.fence)


def _cursor_stays(apply: Any) -> Any:
    def broken(act: Any, chunk: Any, changes: Any, places: Any) -> Any:
        effect = apply(act, chunk, changes, places)
        return replace(effect, changes=[replace(each, checkpoint=None) for each in effect.changes])

    return broken


def _not_above(apply: Any) -> Any:
    return lambda act, chunk, changes, places: apply(replace(act, beyond=0), chunk, changes, places)


def _silent(of_act: Any) -> Any:
    def broken(effect: Any, *args: Any) -> Any:
        quiet = replace(effect, changes=[replace(each, checkpoint=None) for each in effect.changes])
        return of_act(effect, *args)._replace(encoded=of_act(quiet, *args).encoded)

    return broken


@pytest.mark.parametrize("broken", [_fence_stays, _cursor_stays, _not_above, _silent])
def test_broken_versions_are_caught(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken is _silent:
        monkeypatch.setattr(record, "of_act", broken(record.of_act))
    else:
        monkeypatch.setattr(core_acts, "apply", broken(core_acts.apply))
    quick = settings(
        SETTINGS, max_examples=500, report_multiple_bugs=False, database=None, print_blob=False, phases=PHASES
    )
    with pytest.raises((AssertionError, Conflict)):  # a clone whose cursors were not set is noticed by who makes it
        run_state_machine_as_test(InMemory, settings=quick)
