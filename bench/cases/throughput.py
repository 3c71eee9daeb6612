"""The throughput of a batch of small items with a zero-cost handler, ingest included: Holdfast, yardsticks, peers."""

from bench import floor, script, subject
from bench.case import Case, Goal, Probe, Size
from bench.peers.probes import probes as peers


def case(size: Size) -> Case:
    return Case(
        name="throughput",
        asks="Small items, a zero-cost handler, ingest included",
        metric="rate",
        note="Items of about 180 bytes of JSON, results of about 90. The last column says how each was set.",
        proved=True,
        against="holdfast",
        probes=(*yardsticks(size), holdfast(size), *peers(size)),
        goals=(
            Goal(says="Holdfast ÷ hand-written script", of="holdfast", over="script", metric="rate", at_least=0.6),
            Goal(says="Holdfast ÷ floor", of="holdfast", over="floor", metric="rate", at_least=0.12),
            Goal(says="Holdfast ÷ DBOS steps", of="holdfast", over="dbos-steps", metric="rate", at_least=100),
            Goal(says="Holdfast ÷ DBOS queue", of="holdfast", over="dbos-queue", metric="rate", at_least=300),
            Goal(says="Holdfast on disk, without payload", of="holdfast", metric="overhead", at_most=340),
        ),
    )


def yardsticks(size: Size) -> tuple[Probe, ...]:
    return (
        Probe(
            name="bare",
            label="bare loop with JSON",
            run=floor.bare_loop,
            items=size.items,
            durability="keeps nothing",
            survives=False,
        ),
        Probe(
            name="floor",
            label="floor: rows in groups of 1,000",
            run=floor.in_groups,
            items=size.items,
            durability=floor.BY_GROUP,
            survives=True,
        ),
        Probe(
            name="floor-one",
            label="floor: rows one by one",
            run=floor.one_by_one,
            items=max(size.items // 20, 1),
            durability=floor.BY_ITEM,
            survives=True,
        ),
        Probe(
            name="script",
            label="hand-written script",
            run=script.fresh,
            again=script.again,
            items=size.items,
            durability=script.DURABILITY,
            survives=True,
        ),
    )


def holdfast(size: Size) -> Probe:
    return Probe(
        name="holdfast",
        label="Holdfast",
        run=subject.fresh,
        again=subject.again,
        items=size.items,
        durability=subject.DURABILITY,
        survives=True,
    )
