"""Does memory stay where it is when the batch grows? The peak of the whole process, its items from a generator."""

from bench import script, subject
from bench.case import Case, Goal, Probe, Size


def case(size: Size) -> Case:
    few = size.scaled(100_000)
    many = 10_000_000 if size.full else size.scaled(1_000_000)
    return Case(
        name="memory",
        asks="Peak memory, items from a generator",
        metric="peak",
        probes=(
            Probe(
                name="script", label=f"script, {few:,} items", run=script.fresh, items=few, durability=script.DURABILITY
            ),
            Probe(
                name="few",
                label=f"Holdfast, {few:,} items",
                run=subject.fresh,
                items=few,
                durability=subject.DURABILITY,
            ),
            Probe(
                name="many",
                label=f"Holdfast, {many:,} items",
                run=subject.fresh,
                items=many,
                durability=subject.DURABILITY,
            ),
        ),
        goals=(
            Goal(says=f"{many:,} items", of="many", metric="peak", at_most=150),
            Goal(says=f"{many:,} ÷ {few:,} items", of="many", over="few", metric="peak", at_most=1.1),
        ),
    )
