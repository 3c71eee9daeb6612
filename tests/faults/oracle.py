"""What must be true of a batch after any number of crashes and one clean run.

The oracle believes nobody: it holds the store against the journal, both against the effects that the handlers wrote
down outside of the store, and all of it against the script of the app. It collects every complaint, in words.
`test_oracle.py` shows that it fails on broken versions.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast.core import canonical
from holdfast.core.model import State
from holdfast.runtime.operate import audit
from holdfast.runtime.report import lifecycle, status
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.sinks.names import FOLDER
from holdfast.stores.sqlite import SqliteStore
from tests.faults import app
from tests.faults.world import CALLED, CUT, KILLED, PASSED, Effect, Grant, Step, World, gather


def check(
    folder: Path,
    *,
    items: int,
    crashed: Iterable[int] = (),
    complete: bool = True,
    failed: Iterable[int] = (),
    report: dict[str, Any] | None = None,
    spared: int = 0,
) -> list[str]:
    """Every complaint about the batch in a folder; none is a pass.

    `failed` are keys whose handler was made to fail, perhaps before it was called. `spared` is how often an item may
    have been repeated because a run gave back what it had in flight: that leaves no trace in the journal. A batch that
    is not `complete` is held to everything but its end.
    """
    with inside(folder):
        store = SqliteStore(app.STORE)
        try:
            world = gather(store, folder, items, frozenset(crashed))
            check_chains(world, store)
            check_counts(world, report)
            check_items(world, complete, frozenset(failed))
            check_steps(world)
            check_effects(world, spared, frozenset(failed))
            check_order(world)
            check_snapshots(world)
            check_money(world, frozenset(failed))
            check_files(world, clean=not world.crashed and not spared)
            if complete:
                check_end(world, store)
        finally:
            store.close()
    return world.complaints


def check_moment(folder: Path, *, items: int) -> list[str]:
    """Every complaint about a batch in the middle of things, perhaps before anybody tidied up after a crash: what the
    totals say is what the items say when they are counted one by one, and what the journal says."""
    with inside(folder):
        store = SqliteStore(app.STORE)
        try:
            world = gather(store, folder, items, frozenset())
            check_counts(world, status.snapshot(store, world.batch).as_dict())
            check_items(world, False, frozenset())
            check_steps(world)
        finally:
            store.close()
    return world.complaints


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Paths of file sinks begin at the current folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def check_chains(world: World, store: SqliteStore) -> None:
    """The product's own audit, with every output read."""
    found = audit.verify(store, world.batch, full=True)
    world.complaints += [f"audit: {each.where}: {each.message}" for each in found.findings]
    world.expect(found.items == len(world.records), f"audit: it saw {found.items} of {len(world.records)} items")
    twice = [commit.hex() for commit, times in world.commit_ids.items() if times > 1]
    world.expect(not twice, f"these commits landed twice: {twice}")


def check_counts(world: World, report: dict[str, Any] | None) -> None:
    """Totals on the chunks, in the records and in the report are one and the same."""
    states = Counter(record.place.state for record in world.records.values())
    for state in (State.DONE, State.SKIPPED, State.DEAD, State.CANCELLED):
        told = sum(getattr(chunk.counts, state.value) for chunk in world.chunks)
        world.expect(told == states[state], f"the chunks count {told} {state}, the records {states[state]}")
    covered = [n for chunk in world.chunks for n in range(chunk.lo, chunk.hi)]
    world.expect(covered == sorted(world.records), "the chunks do not cover every item exactly once")
    if report is not None:
        told = {state.value: report["counts"][state.value] for state in State}
        world.expect(
            told == {state.value: states[state] for state in State}, f"the report says {told}, the records {states}"
        )
        world.expect(
            report["counts"]["expected"] == sum(states.values()), "the report's counts do not sum to what is expected"
        )
        spent = canonical.to_usd(sum(chunk.counts.spent for chunk in world.chunks))
        world.expect(
            Decimal(report["totals"]["usd"]) == spent,
            f"the report says ${report['totals']['usd']}, the chunks ${spent}",
        )


def check_items(world: World, complete: bool, failed: frozenset[int]) -> None:
    """Every item of the source is there once, and ended as the script says."""
    expected = [str(raw["number"]) for raw in app.source(world.items)]
    keys = Counter(str(record.key) for record in world.records.values())
    if complete or world.batch.ingested_at is not None:
        missing = sorted(set(expected) - set(keys))
        world.expect(not missing, f"items were lost: {missing}")
    unknown = sorted(set(keys) - set(expected)) + [key for key, times in keys.items() if times > 1]
    world.expect(not unknown, f"items are there that should not be, or twice: {unknown}")
    for record in world.records.values():
        place, wanted = record.place, expected_end(record.key)
        is_open = place.state is State.PENDING and not complete
        was_killed = place.state is State.DEAD and (place.code == KILLED or record.key in failed)
        is_as_told = (place.state, place.code if place.state is State.DEAD else "") == wanted
        world.expect(
            is_open or was_killed or is_as_told,
            f"item {record.key!r} is {place.state} ({place.code}: {place.reason}), the script says {wanted}",
        )
        world.expect(place.epoch == 0, f"item {record.key!r} went back ({place.reason}), and nobody touched its output")


def expected_end(key: Any) -> tuple[State, str]:
    if key == app.INVALID:
        return State.DEAD, "invalid"
    return {
        "skip": (State.SKIPPED, ""),
        "permanent": (State.DEAD, "no_address"),
        "exhausted": (State.DEAD, "busy"),
    }.get(app.fate(key), (State.DONE, ""))


def check_steps(world: World) -> None:
    """Each stage of an epoch succeeds once; attempts are numbered without gaps; a done item has all of its stages."""
    for (n, stage), steps in world.steps.items():
        key = world.records[n].key if n in world.records else f"#{n}"
        per_epoch = Counter(step.epoch for step in steps if step.word in PASSED)
        for epoch, times in per_epoch.items():
            world.expect(times == 1, f"item {key!r} passed {app.STAGES[stage]!r} {times} times in epoch {epoch}")
        for attempts in budgets(steps):
            world.expect(
                attempts == list(range(1, len(attempts) + 1)),
                f"item {key!r}, {app.STAGES[stage]!r}: attempts {attempts} are not counted one by one",
            )
            world.expect(
                len(attempts) <= app.ATTEMPTS,
                f"item {key!r}, {app.STAGES[stage]!r}: {len(attempts)} attempts, {app.ATTEMPTS} were allowed",
            )
    for n, stage in world.outputs:
        made = any(step.word in PASSED for step in world.steps[n, stage])
        world.expect(made, f"item {n} has an output of {app.STAGES[stage]!r}, and the journal does not say how")
    for n, record in world.records.items():
        reached = len(app.STAGES) if record.place.state is State.DONE else record.place.stage
        for stage in range(reached):
            passed = [s for s in world.steps[n, stage] if s.word in PASSED]
            world.expect(
                bool(passed), f"item {record.key!r} is past {app.STAGES[stage]!r}, and the journal does not say how"
            )
            world.expect(
                (n, stage) in world.outputs,
                f"item {record.key!r} is past {app.STAGES[stage]!r}, and its output is gone",
            )
        last = [s for s in world.steps[n, reached - 1] if s.word in PASSED] if reached else []
        if last and reached == len(app.STAGES):
            world.expect(
                any(grant.fence == last[-1].fence and grant.lo <= n < grant.hi for grant in world.grants),
                f"item {record.key!r} was finished under fence {last[-1].fence}, which nobody was granted",
            )


def budgets(steps: list[Step]) -> Iterator[list[int]]:
    """The numbers of attempts, budget by budget: an epoch has a new one, and so has an item that an operator moved."""
    attempts: list[int] = []
    epoch = 0
    for step in steps:
        if step.word == "moved" or step.epoch != epoch:
            yield attempts
            attempts, epoch = [], step.epoch
        if step.word in CALLED - {"defer"}:
            attempts.append(step.attempt)
    yield attempts


def check_effects(world: World, spared: int, failed: frozenset[int]) -> None:
    """At least one call of a handler for all that is recorded; at most one more for each crash that touched it."""
    calls: dict[tuple[int, int], list[Effect]] = defaultdict(list)
    for effect in world.effects:
        n = world.number_of.get(effect.key)
        if n is None:
            world.expect(False, f"a handler was called for {effect.key!r}, which is not in the store")
            continue
        calls[n, app.STAGES.index(effect.stage)].append(effect)
    taken = [grant for grant in world.grants if grant.taken_from]
    for grant in taken:
        crashed = any(f"/{pid}/" in grant.taken_from for pid in world.crashed)
        world.expect(crashed, f"fence {grant.fence} was taken from {grant.taken_from}, which was alive")
    for (n, stage), effects in calls.items():
        recorded = Counter(step.word for step in world.steps[n, stage])
        ran = sum(recorded[word] for word in CALLED)
        touched = sum(grant.lo <= n < grant.taken_to for grant in taken) + spared + recorded[CUT]
        key = world.records[n].key
        where = f"item {key!r}, {app.STAGES[stage]!r}"
        world.expect(
            len(effects) >= ran or key in failed,
            f"{where}: {ran} attempts are recorded, the handler was called {len(effects)} times",
        )
        world.expect(
            len(effects) <= ran + touched,
            f"{where}: called {len(effects)} times for {ran} recorded attempts and {touched} crashes",
        )
    for (n, stage), steps in world.steps.items():
        if world.records[n].key not in failed:
            check_provenance(world, n, stage, steps, calls[n, stage])


def check_provenance(world: World, n: int, stage: int, steps: list[Step], effects: list[Effect]) -> None:
    """What is recorded under a fence was done under that fence."""
    where = f"item {world.records[n].key!r}, {app.STAGES[stage]!r}"
    by_fence = Counter((effect.fence, effect.attempt) for effect in effects)
    for step in steps:
        if step.word == "adopt" or (step.word in CALLED and stage == 0):
            world.expect(bool(effects), f"{where}: its output is recorded, and no handler made it")
        elif step.word in CALLED:
            world.expect(
                by_fence[step.fence, step.attempt] > 0,
                f"{where}: {step.word} is recorded under fence {step.fence} as attempt {step.attempt}, "
                f"the handler was called under {sorted(by_fence)}",
            )


def check_order(world: World) -> None:
    """A handler is called only after the grant, the attempts before and the stage before are durable."""
    grants: dict[int, list[Grant]] = defaultdict(list)
    for grant in world.grants:
        grants[grant.fence].append(grant)
    for effect in world.effects:
        n = world.number_of.get(effect.key)
        if n is None or not effect.fence:
            continue
        stage = app.STAGES.index(effect.stage)
        where = f"item {effect.key!r}, {effect.stage!r}, attempt {effect.attempt}"
        granted = [grant for grant in grants[effect.fence] if grant.lo <= n < grant.hi]
        world.expect(
            len(granted) == 1,
            f"{where}: the handler was called under fence {effect.fence}, granted {len(granted)} times",
        )
        before = [s for s in world.steps[n, stage - 1] if s.word in PASSED]
        world.expect(
            any(s.at <= effect.at for s in before),
            f"{where}: it began before the stage before it was durable",
        )
        failed = [s.attempt for s in world.steps[n, stage] if s.word == "retry" and s.at <= effect.at]
        world.expect(
            effect.attempt == 1 or effect.attempt - 1 in failed, f"{where}: the attempt before it was not durable"
        )


def check_snapshots(world: World) -> None:
    """A grant lists every item that is not at its first attempt, with the attempts it has used."""
    stories: dict[int, list[tuple[float, int, Step]]] = defaultdict(list)
    for (n, stage), steps in world.steps.items():
        stories[n] += [(step.at, stage, step) for step in steps]
    for grant in world.grants:
        for n in range(grant.lo, grant.hi):
            before = [(stage, step) for at, stage, step in sorted(stories[n]) if at < grant.at]
            if before and before[-1][1].word == "retry":
                wanted = (before[-1][0], before[-1][1].attempt)
                told = grant.snapshots.get(n)
                world.expect(told == wanted, f"item {n} was granted at {wanted}, the entry of the grant says {told}")


def check_money(world: World, failed: frozenset[int]) -> None:
    """Every recorded attempt has its cost, once, and so has every output that was adopted; nothing else has one. An
    attempt that was made to fail before its handler was called cost nothing."""
    on_chunks = sum(chunk.counts.spent for chunk in world.chunks)
    in_journal = sum(units for *_, units in world.spends)
    world.expect(on_chunks == in_journal, f"the chunks have spent {on_chunks}, their journal {in_journal}")
    said = Counter((n, stage) for n, stage, _, _ in world.spends)
    for (n, stage), steps in world.steps.items():
        ran = sum(step.word in CALLED | PASSED for step in steps) if stage else 0
        cut = sum(step.word == CUT for step in steps)
        key = world.records[n].key
        where = f"item {key!r}, {app.STAGES[stage]!r}"
        uncalled = key in failed and said[n, stage] == ran - 1
        world.expect(
            ran <= said[n, stage] <= ran + cut or uncalled,
            f"{where}: {ran} attempts and {said[n, stage]} costs are recorded; {cut} were cut off",
        )
    paid = Counter(map(bill_of, world.effects))
    for (key, stage, units), times in Counter(bills(world)).items():
        was = f"was paid {paid[key, stage, units]} times"
        world.expect(
            paid[key, stage, units] >= times, f"item {key!r}, {stage!r}: {units} is recorded {times} times, it {was}"
        )


def bill_of(effect: Effect) -> tuple[Any, str, int]:
    return effect.key, effect.stage, canonical.to_units(Decimal(effect.cents) / 100)


def bills(world: World) -> Iterator[tuple[Any, str, int]]:
    for n, stage, _, units in world.spends:
        yield world.records[n].key, app.STAGES[stage], units


def check_files(world: World, *, clean: bool) -> None:
    """Each finished item has its whole output under its name, and nothing else has that name."""
    out = world.folder / "out"
    done = {record.key for record in world.records.values() if record.place.state is State.DONE}
    named = {path.name: path for path in out.glob("*") if path.name != FOLDER} if out.exists() else {}
    for key in done:
        path = named.pop(f"{key:03d}.json", None)
        if path is None:
            world.expect(False, f"item {key!r} is done, and its file is missing")
            continue
        try:
            world.expect(
                app.Bound.model_validate_json(path.read_bytes()) == app.bound(key),
                f"{path.name} does not hold what it should",
            )
        except ValueError as error:
            world.expect(False, f"{path.name} is damaged: {error}")
        evidence = Evidence.decode(world.outputs[world.number_of[key], 2].file)
        world.expect(path.stat().st_size == evidence.size, f"{path.name} has another size than recorded")
    world.expect(not named, f"files are there that nothing recorded: {sorted(named)}")
    ours = (path.name for path in (out / FOLDER).glob("*"))
    left = sorted(name for name in ours if not name.startswith("names-"))  # the note of whose the files are stays
    world.expect(not (clean and left), f"nothing crashed, and temporary files are left: {left}")


def check_end(world: World, store: SqliteStore) -> None:
    """Nobody holds anything, nothing is left to do, and the batch knows it."""
    world.expect(world.batch.ingested_at is not None, "the source was never read to its end")
    for chunk in world.chunks:
        world.expect(chunk.pending == 0, f"chunk {chunk.id} has {chunk.pending} pending items")
        world.expect(chunk.owner is None, f"chunk {chunk.id} is still held by {chunk.owner}")
    world.expect("read" in lifecycle.completed_stages(store, world.batch), "the completion of 'read' was not recorded")
