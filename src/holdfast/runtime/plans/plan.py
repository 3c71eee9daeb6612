"""What a run would do and why, as a value: nothing of it is done, and nothing changes it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.core.model import Key
from holdfast.core.planning import Fate, Outlook, Reason
from holdfast.runtime.durations import brief
from holdfast.runtime.plans.forecast import RunForecast
from holdfast.runtime.words import many, printable, usd

EXAMPLES = 3
"""Keys that are shown for each row."""
ORDER = list(Fate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Items of which the same would become, for the same reason."""

    fate: Fate
    stage: str
    """Where they would begin; where they stand, of those that are left alone; empty where they are at the end."""
    reason: Reason
    count: int
    examples: tuple[Key, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fate": str(self.fate), "reason": str(self.reason), "examples": list(self.examples)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do with every item, and why."""

    pipeline: str
    batch: str
    is_new: bool
    """There is no such batch yet."""
    verify: str
    rows: tuple[Row, ...]
    read: int
    """Items of the source that were read; 0 where there is none."""
    forecast: RunForecast
    obstacles: tuple[str, ...] = ()
    """Why a run would be refused, or would do nothing."""
    does_nothing: bool = False
    """Which of both: the batch is paused, cancelled or at its end, and a run would end at once without an error."""
    notes: tuple[str, ...] = ()
    so_far: str = ""
    """What the rows of a scan took and cost, where nobody knows how many are left."""

    @property
    def counts(self) -> dict[str, int]:
        """How many items would run, be rewound, adopted, buried, skipped; or be the reason for a refusal."""
        found: Counter[Fate] = Counter()
        for row in self.rows:
            found[row.fate] += row.count
        return {str(fate): found[fate] for fate in Fate}

    def count(self, fate: str, reason: str | None = None) -> int:
        """How many items have that fate, for that reason."""
        return sum(row.count for row in self.rows if row.fate == fate and reason in (None, row.reason))

    @property
    def is_idle(self) -> bool:
        """Whether a run would find nothing to do."""
        return not any(row.count for row in self.rows if row.fate is not Fate.SKIP)

    def as_dict(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline, "batch": self.batch, "new": self.is_new, "verify": self.verify,
            "read": self.read, "counts": self.counts, "rows": [row.as_dict() for row in self.rows],
            "forecast": self.forecast.as_dict(), "obstacles": list(self.obstacles), "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.batch}: {self.headline}"]
        for row in self.rows:
            at = f" at {row.stage}" if row.stage else ""
            keys = ", ".join(map(str, row.examples)) + (", …" if row.count > len(row.examples) else "")
            lines.append(f"  {row.fate:<7} {row.count:>9,}  {row.reason}{at} ({keys})")
        lines += [f"  {line}" for line in self.outlook]
        barred = "barred " if self.does_nothing else "refused"
        lines += [f"  {barred}  {text}" for text in self.obstacles] + [f"  note     {text}" for text in self.notes]
        return printable("\n".join(lines))

    @property
    def headline(self) -> str:
        """The plan in a sentence."""
        if self.obstacles:
            return "a run would do nothing." if self.does_nothing else "a run would be refused."
        if self.is_idle:
            return "nothing to do: everything is settled, or in other hands."
        said = {
            "run": "would run",
            "rewind": "would be rewound",
            "adopt": "would be adopted",
            "bury": "would be buried",
            "skip": "would be left alone",
        }
        return ", ".join(f"{self.counts[fate]:,} {text}" for fate, text in said.items() if self.counts[fate]) + "."

    @property
    def outlook(self) -> Sequence[str]:
        """Time and money, as far as they can be told."""
        told = self.forecast
        if not any(each.items for each in told.stages):
            return ()
        if told.learned_from is None and self.so_far:
            return (f"forecast {self.so_far}",)
        if told.learned_from is None:
            return ("forecast nothing is known yet of how long an item takes, or of what it costs",)
        source = "" if told.learned_from == self.batch else f", as in batch {told.learned_from}"
        line = (
            f"forecast about {brief(told.seconds)} with {many(told.workers, 'worker')} "
            f"({brief(told.work_seconds)} of work) and {usd(told.usd)}{source}"
        )
        rest = f"; nothing is known of {', '.join(told.unknown)}" if told.unknown else ""
        return (line + rest,)


class Tally:
    """Counts outlooks, with a few keys of each."""

    def __init__(self) -> None:
        self._counts: Counter[Outlook] = Counter()
        self._examples: dict[Outlook, list[Key]] = {}

    def add(self, outlook: Outlook, key: Key) -> None:
        self._counts[outlook] += 1
        some = self._examples.setdefault(outlook, [])
        if len(some) < EXAMPLES:
            some.append(key)

    def add_many(self, outlook: Outlook, count: int) -> None:
        self._counts[outlook] += count

    def lacks_examples(self, outlook: Outlook) -> int:
        """How many keys more may be shown."""
        return EXAMPLES - len(self._examples.get(outlook, ()))

    def show(self, outlook: Outlook, keys: Sequence[Key]) -> None:
        self._examples.setdefault(outlook, []).extend(keys)

    def take_back(self, outlook: Outlook, key: Key) -> None:
        self._counts[outlook] -= 1
        if key in self._examples.get(outlook, ()):
            self._examples[outlook].remove(key)

    def work(self, stages: int) -> dict[int, int]:
        """How many items would be run at each stage."""
        found: Counter[int] = Counter()
        for outlook, count in self._counts.items():
            if outlook.fate in (Fate.RUN, Fate.REWIND, Fate.ADOPT):
                for stage in range(outlook.stage + (outlook.fate is Fate.ADOPT), stages):
                    found[stage] += count
        return dict(found)

    def rows(self, stages: Sequence[str]) -> Iterator[Row]:
        found = [(outlook, count) for outlook, count in self._counts.items() if count]
        for outlook, count in sorted(
            found, key=lambda pair: (ORDER.index(pair[0].fate), pair[0].stage, pair[0].reason)
        ):
            stage = stages[outlook.stage] if outlook.stage < len(stages) else ""
            yield Row(fate=outlook.fate, stage=stage, reason=outlook.reason, count=count,
                      examples=tuple(self._examples.get(outlook, ())))  # fmt: skip
