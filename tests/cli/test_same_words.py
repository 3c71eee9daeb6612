"""The report of a run, `holdfast status` and `holdfast reconcile` say the same of a batch, in the same word."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.cli.conftest import Command

WHERE = Path(".holdfast") / "state.db"


def letters(**options: Any) -> hf.Pipeline:
    made = hf.Pipeline("letters", store=WHERE)

    @made.stage(retry=hf.Retry(attempts=1), **options)
    def bind(number: int, ctx: hf.Context) -> str:
        ctx.spend(usd="0.10")
        if number == 13:
            raise hf.Permanent("unlucky")
        return f"letter {number}"

    return made


def run(items: Iterable[int], **options: Any) -> hf.Report:
    return letters().run(items, workers=1, progress=False, **options)


def scan(lines: int, **options: Any) -> hf.Report:
    Path("orders.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(lines)))
    made = hf.Scan("letters", hf.Csv("orders.csv"), store=WHERE, partitions=2, every=1)

    @made.handler
    def add(rows: list[Any], acc: int = 0, *, ctx: hf.Context) -> int:
        ctx.spend(usd="0.10")
        return acc + len(rows)

    return made.run(progress=False, workers=1, **options).run


def more_than_expected() -> hf.Report:
    letters().expect(None, 1)
    return run([1, 2])


def fewer_than_expected() -> hf.Report:
    letters().expect(None, 3)
    return run([1, 2])


def paused_by_a_person() -> hf.Report:
    run([1, 2], budget=hf.Budget(usd="0.10"))
    letters().pause("letters", reason="later")
    return letters().report()


def messages_beyond_the_number() -> hf.Report:
    letters().expect(None, 1)
    for number in (1, 2):
        letters().process(number)
    return letters().report()


def given_up_before_it_was_read() -> hf.Report:
    letters().process(1)
    letters().cancel("letters", reason="enough")
    return letters().report()


STORIES: dict[str, tuple[Callable[[], hf.Report], str]] = {
    "nothing came": (lambda: run([]), "empty"),
    "nothing came, and that is fine": (lambda: run([], allow_empty=True), "complete"),
    "fine once, and run again": (lambda: run([], allow_empty=run([], allow_empty=True) is None), "complete"),
    "no row came": (lambda: scan(0), "empty"),
    "no row came, and that is fine": (lambda: scan(0, allow_empty=True), "complete"),
    "some rows came": (lambda: scan(3), "complete"),
    "the budget of a scan": (lambda: scan(30, budget=hf.Budget(usd="0.35")), "paused"),
    "the budget of a pipeline": (lambda: run(range(9), budget=hf.Budget(usd="0.35")), "paused"),
    "too many dead letters": (lambda: run([13, *range(9)], tolerate=hf.Tolerance(count=0)), "over tolerance"),
    "a person paused it": (paused_by_a_person, "paused"),
    "more than expected": (more_than_expected, "finished with findings"),
    "messages beyond the number": (messages_beyond_the_number, "finished with findings"),
    "fewer than expected": (fewer_than_expected, "stopped"),
    "cancelled": (given_up_before_it_was_read, "cancelled"),
    "all are done": (lambda: run([1, 2]), "complete"),
    "one died": (lambda: run([1, 13]), "complete with dead letters"),
}


@pytest.mark.promise("A14", "A15")
@pytest.mark.parametrize("story", STORIES)
def test_three_screens_say_the_same_word(here: Path, holdfast: Command, story: str) -> None:
    tell, word = STORIES[story]
    report = tell()
    assert report.state == word
    assert holdfast("status", "letters", "--json").document["state"] == word
    assert holdfast("reconcile", "letters", "--json").document["state"] == word
    assert holdfast("status", "letters").out.splitlines()[0].startswith(f"letters  {word} ·")
    assert f" {word} " in holdfast("status").out
    compared = holdfast("reconcile", "letters")
    assert word.startswith("complete") or f"state {word}" in " ".join(compared.out.split())
    assert (compared.code == 0) is (report.exit_code == 0 or word == "cancelled")
    if "row" not in story and "scan" not in story:
        assert letters().report().state == word
