"""How fast is a batch of small items with a zero-cost handler, ingest included?"""

from bench import floor, script, subject
from bench.case import Case, Goal, Probe, Size


def case(size: Size) -> Case:
    return Case(
        name="throughput",
        asks="Small items, a zero-cost handler, ingest included",
        metric="rate",
        probes=(
            Probe(name="bare", label="bare loop with JSON", run=floor.bare_loop, items=size.items),
            Probe(
                name="floor",
                label="floor: SQLite rows, groups of 1,000",
                run=floor.in_groups,
                items=size.items,
                durability=floor.BY_GROUP,
            ),
            Probe(
                name="floor-one",
                label="floor: SQLite rows, one by one",
                run=floor.one_by_one,
                items=max(size.items // 20, 1),
                durability=floor.BY_ITEM,
            ),
            Probe(
                name="script",
                label="hand-written script",
                run=script.fresh,
                items=size.items,
                durability=script.DURABILITY,
            ),
            Probe(
                name="holdfast",
                label="Holdfast",
                run=subject.fresh,
                items=size.items,
                durability=subject.DURABILITY,
            ),
        ),
        goals=(
            Goal(says="Holdfast ÷ hand-written script", of="holdfast", over="script", metric="rate", at_least=0.6),
            Goal(says="Holdfast ÷ floor", of="holdfast", over="floor", metric="rate", at_least=0.12),
            Goal(says="Holdfast on disk, without payload", of="holdfast", metric="overhead", at_most=300),
        ),
    )
