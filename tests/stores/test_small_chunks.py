"""Many small chunks: what a claim costs does not depend on how many are held."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from holdfast.core.limits import SUSPECT
from holdfast.core.model import BatchId, Claim, ClaimRequest, Commit, ItemNo, Receipt
from holdfast.core.settle import commit, settle
from holdfast.stores import faults
from holdfast.stores.base import Idle
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import DEFINITION, POLICIES, STAGES, done, holder_of, new_item

COUNT = 60
"""Chunks of two items each."""


class Shelf:
    """A store with many small chunks, some owners of which are dead."""

    def __init__(self, path: Path) -> None:
        self.now = 1_000_000.0
        self.dead: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.store = SqliteStore(path, clock=lambda: self.now, is_dead=self._is_dead)
        self.batch: BatchId = self.store.open_batch("book", "pages", DEFINITION, actor="tester").id
        for number in range(COUNT):
            self.store.add_items(self.batch, [new_item(f"{number}a"), new_item(f"{number}b")])

    def _is_dead(self, owner: str) -> bool:
        self.asked[owner] += 1
        return owner in self.dead

    def want(self, owner: str = "ann", **more: object) -> ClaimRequest:
        return replace(ClaimRequest(batch=self.batch, owner=owner, limit=1000, seconds=30), **more)

    def granted(self, owner: str = "ann", **more: object) -> list[Claim]:
        claim = self.store.claim(self.want(owner, **more))
        return [claim, *claim.more] if isinstance(claim, Claim) else []

    def statements(self, act: Callable[[], object]) -> int:
        """How many statements something takes."""
        seen: list[str] = []
        database: apsw.Connection = self.store._file._db
        database.exec_trace = lambda _cursor, sql, _bindings: bool(seen.append(sql)) or True
        act()
        database.exec_trace = None
        return len(seen)

    def commits(self, claims: Sequence[Claim], *, release: bool = False) -> list[Commit]:
        """One commit for each claim, in which both of its items pass their first stage."""
        return [
            commit(
                replace(holder_of(claim, 0), seconds=30),
                settle([done(item) for item in self.store.load(claim, None, 10, 1 << 20)], stages=STAGES,
                       policies=POLICIES, now=self.now),
                commit_id=claim.lo.to_bytes(16, "big"), release=release,
            )
            for claim in claims
        ]  # fmt: skip


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path / "state.db")
    yield shelf
    shelf.store.close()


@pytest.mark.promise("C1")
def test_many_are_granted_in_one_write(shelf: Shelf) -> None:
    writes: list[str] = []
    faults.arm(writes.append)
    try:
        claims = shelf.granted(chunks=50)
    finally:
        faults.arm(None)
    assert (len(claims), writes.count("claim.written")) == (50, 1)
    assert [claim.lo for claim in claims] == list(range(0, 100, 2)), "in order"
    assert len(shelf.granted("bob", chunks=50)) == COUNT - 50


def test_they_count_towards_the_limit_and_none_is_cut_for_it(shelf: Shelf) -> None:
    assert [claim.pending for claim in shelf.granted(chunks=50, limit=7)] == [2, 2, 2]
    assert [claim.pending for claim in shelf.granted(chunks=50, limit=1)] == [1], "the first is, as ever"
    assert len(shelf.granted()) == 1, "who does not ask for more gets one"


@pytest.mark.promise("B6")
def test_under_a_budget_each_grant_is_judged_by_itself(shelf: Shelf) -> None:
    assert len(shelf.granted(chunks=50, cap=1_000_000, reserve=1)) == 1


@pytest.mark.promise("A6")
def test_what_carries_blame_is_not_granted_with_others(shelf: Shelf) -> None:
    for number in range(SUSPECT):
        (claim,) = shelf.granted(f"dead{number}", limit=2)
        assert claim.lo == 0
        shelf.dead.add(f"dead{number}")
        shelf.now += 60
    for _half in range(2):
        (claim,) = shelf.granted(chunks=50)
        assert (claim.pending, claim.blame) == (1, SUSPECT)
    others = shelf.granted(chunks=50)
    assert len(others) == 50
    assert not any(claim.blame for claim in others)


def test_each_owner_is_looked_at_once_however_much_it_holds(shelf: Shelf) -> None:
    shelf.granted("bob", chunks=COUNT // 2)
    few = Counter(shelf.asked)
    shelf.granted("cid", chunks=COUNT)
    shelf.asked.clear()
    assert not shelf.granted("ann")
    assert shelf.asked["bob"] == shelf.asked["cid"] <= 2, "whether it is dead, and whether it holds anything"
    assert few["bob"] <= shelf.asked["bob"]


@pytest.mark.promise("C2")
def test_what_a_dead_process_held_is_taken_over_in_order(shelf: Shelf) -> None:
    shelf.granted("bob", chunks=COUNT // 2)
    shelf.granted("cid", chunks=COUNT)
    shelf.dead |= {"bob", "cid"}
    assert [claim.lo for _ in range(3) for claim in shelf.granted("ann")] == [0, 2, 4]


def test_what_the_claimer_keeps_is_not_granted_to_it_though_its_leases_ended(shelf: Shelf) -> None:
    mine = shelf.granted(chunks=20)
    shelf.now += 60
    keeps = frozenset(claim.lease.chunk for claim in mine)
    others = shelf.granted(chunks=100, keeps=keeps)
    assert len(others) == COUNT - 20
    assert keeps.isdisjoint(claim.lease.chunk for claim in others)


def test_the_number_of_statements_does_not_grow_with_what_is_held(tmp_path: Path) -> None:
    found = []
    for taken in (1, COUNT):
        shelf = Shelf(tmp_path / f"{taken}.db")
        shelf.granted("bob", chunks=taken)
        for chunk in shelf.store.chunks(shelf.batch)[taken:]:
            only = shelf.store.claim(shelf.want("cid", only=ItemNo(chunk.lo)))
            assert isinstance(only, Claim)
        answers: list[object] = []
        found.append(shelf.statements(lambda: answers.append(shelf.store.claim(shelf.want("ann")))))  # noqa: B023
        assert isinstance(answers[0], Idle)
        shelf.store.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("release", [False, True])
def test_the_number_of_statements_hardly_grows_with_the_chunks_of_one_claim_or_commit(
    shelf: Shelf, release: bool
) -> None:
    claims: list[Claim] = []
    granted = shelf.statements(lambda: claims.extend(shelf.granted(chunks=COUNT)))
    commits = shelf.commits(claims, release=release)
    receipts: list[Receipt] = []
    written = shelf.statements(lambda: receipts.extend(shelf.store.commit(commits)))
    assert len(claims) == len(receipts) == COUNT
    assert all(receipt.landed for receipt in receipts)
    assert granted <= 30
    assert written <= 30
    assert all((chunk.owner is None) is release and chunk.version == 1 for chunk in shelf.store.chunks(shelf.batch))


@pytest.mark.promise("A2", "C3")
def test_of_commits_that_are_written_together_each_has_its_own_guard(shelf: Shelf) -> None:
    claims = shelf.granted(chunks=7)
    good, other_fence, other_version, lost, again, last, other_grant = shelf.commits(claims)
    assert shelf.store.commit([again]) == [Receipt(landed=True)]
    shelf.dead.add("ann")
    assert isinstance(shelf.store.claim(shelf.want("bob", only=claims[3].lo)), Claim)
    before = {chunk.id: chunk for chunk in shelf.store.chunks(shelf.batch)}
    receipts = shelf.store.commit(
        [good, replace(other_fence, fence=99), replace(other_version, version=7), lost, again, last,
         replace(other_grant, grant=b"restored")]
    )  # fmt: skip
    assert [(receipt.landed, receipt.reason) for receipt in receipts] == [
        (True, None), (False, "lost"), (False, "stale"), (False, "lost"), (True, None), (True, None),
        (False, "lost"),
    ]  # fmt: skip
    changed = {chunk.id for chunk in shelf.store.chunks(shelf.batch) if chunk != before[chunk.id]}
    assert changed == {good.chunk, last.chunk}
    assert {output.n for output in shelf.store.outputs(shelf.batch)} == {
        output.n for written in (good, again, last) for output in written.outputs
    }


@pytest.mark.promise("A3")
def test_two_commits_of_one_chunk_land_one_after_the_other(shelf: Shelf) -> None:
    one, two = shelf.granted(chunks=2)
    first, other = shelf.commits([one, two])
    second = replace(first, id=b"second".ljust(16), version=1, release=True)
    third = replace(first, id=b"third".ljust(16), version=1)
    receipts = shelf.store.commit([first, other, second, third])
    assert [receipt.landed for receipt in receipts] == [True, True, True, False]
    assert [(chunk.version, chunk.owner) for chunk in shelf.store.chunks(shelf.batch)[:2]] == [(2, None), (1, "ann")]


@pytest.mark.promise("C3")
def test_a_lost_write_of_many_grants_is_not_taken_for_a_file_that_was_set_back(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "state.db")

    def fail(point: str) -> None:
        if point == "claim.written":
            raise OSError(5, "injected")

    faults.arm(fail)
    try:
        with pytest.raises(OSError, match="injected"):
            shelf.granted(chunks=50)
    finally:
        faults.arm(None)
    shelf.store.close()
    again = SqliteStore(tmp_path / "state.db")
    rows = again._file._db.execute("SELECT count(*) FROM meta WHERE name = 'set_back'").fetchall()
    assert rows == [(0,)]
    again.close()
