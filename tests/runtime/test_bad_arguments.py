"""Every argument that cannot be right is refused before anything happens, with what to write instead."""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from tests.runtime.support import run


@pytest.fixture
def keeping(book: hf.Pipeline) -> hf.Pipeline:
    book.stage(name="keep")(lambda value: value)
    return book


RUN: dict[str, tuple[dict[str, Any], str]] = {
    "no workers": ({"workers": 0}, "workers=0: pass a whole number from 1"),
    "workers below zero": ({"workers": -1}, "workers=-1"),
    "half a worker": ({"workers": 1.5}, "workers=1.5"),
    "workers as text": ({"workers": "4"}, "workers='4'"),
    "workers that are true": ({"workers": True}, "workers=True"),
    "workers without end": ({"workers": 10**9}, "workers=1000000000"),
    "a lease in other words": ({"lease": "x"}, "lease='x': write a time such as '30s'"),
    "a lease of nothing": ({"lease": 0}, "lease=0"),
    "a lease below zero": ({"lease": -5}, "lease=-5"),
    "a lease of a week": ({"lease": "7d"}, "lease='7d'"),
    "a lease that is no number": ({"lease": math.nan}, "lease=nan"),
    "a lease that is none": ({"lease": None}, "lease=None"),
    "tolerating less than nothing": ({"tolerate": -1}, "tolerate=-1: write a number of items"),
    "tolerating one item or all": ({"tolerate": 1.0}, "tolerate=1.0: write a number of items such as 5, or a share"),
    "a share without its percent": ({"tolerate": 0.01}, "tolerate=0.01"),
    "undoing a share without its percent": ({"undo": 0.3}, "undo=0.3"),
    "tolerating in words": ({"tolerate": "some"}, "tolerate='some'"),
    "tolerating more than all": ({"tolerate": 1.5}, "tolerate=1.5"),
    "tolerating more than all in percent": ({"tolerate": "150%"}, "tolerate='150%'"),
    "tolerating a percentage of words": ({"tolerate": "x%"}, "tolerate='x%'"),
    "tolerating no number": ({"tolerate": math.nan}, "tolerate=nan"),
    "a deadline before now": ({"deadline": -1}, "deadline=-1"),
    "a deadline in other words": ({"deadline": "soon"}, "deadline='soon'"),
    "a deadline nowhere": ({"deadline": dt.datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
    "a level nobody knows": ({"verify": "some"}, 'verify=\'some\': pass "none", "quick" or "full"'),
    "a level that is true": ({"verify": True}, "verify=True"),
    "an executor nobody knows": ({"executor": "gpu"}, "executor='gpu': pass 'threads'"),
    "an executor that is none": ({"executor": print}, "executor="),
    "progress in words": ({"progress": "yes"}, "progress='yes': pass True, False"),
    "an identity nobody knows": ({"identity": "row"}, "identity='row': pass \"key\""),
    "a change nobody knows": ({"changed": "ask"}, "changed='ask': use \"refuse\""),
    "a key that is a number": ({"key": 5}, "key=5: pass the name of a field"),
    "a budget that is a number": ({"budget": 5}, r"budget=5: pass hf.Budget"),
    "events to a number": ({"events": 5}, "events=5"),
    "a batch that is a number": ({"batch": 5}, "batch name 5"),
    "a batch without a name": ({"batch": ""}, "batch name ''"),
    "a batch of blanks": ({"batch": "  "}, "batch name"),
    "a batch with blanks around": ({"batch": " a"}, "batch name ' a'"),
    "a batch with a line end": ({"batch": "a\nb"}, "control characters"),
    "a batch with a very long name": ({"batch": "b" * 201}, "at most 200 characters"),
    "a batch with half a character": ({"batch": "\udcff"}, "batch name"),
}


@pytest.mark.parametrize(("options", "says"), RUN.values(), ids=RUN)
def test_a_run_refuses(keeping: hf.Pipeline, options: dict[str, Any], says: str) -> None:
    with pytest.raises(hf.UsageError) as caught:
        run(keeping, [1], **options)
    assert says in str(caught.value)
    assert not keeping.store.batches(), "nothing happened"


STAGE: dict[str, tuple[dict[str, Any], str]] = {
    "no time": ({"timeout": 0}, "timeout=0 must be more than 0 s"),
    "time in other words": ({"timeout": "x"}, "timeout='x': write a time"),
    "time below zero": ({"timeout": -1}, "timeout=-1"),
    "no concurrency": ({"concurrency": 0}, "concurrency=0: pass a whole number"),
    "half a concurrency": ({"concurrency": 1.5}, "concurrency=1.5"),
    "concurrency as text": ({"concurrency": "2"}, "concurrency='2'"),
    "concurrency that is true": ({"concurrency": True}, "concurrency=True"),
    "an executor nobody knows": ({"executor": "gpu"}, "executor='gpu' must be"),
    "metrics that are no model": ({"metrics": dict}, "must be a pydantic model"),
    "metrics that are a value": ({"metrics": 5}, "must be a pydantic model"),
    "a retry that is a number": ({"retry": 3}, "retry=3: pass hf.Retry"),
    "a sink that is a path": ({"sink": "out/{key}.json"}, 'pass hf.Files("out/{key}.json")'),
    "a name that is a number": ({"name": 5}, "stage name 5"),
    "a name of blanks": ({"name": " "}, "stage name ' '"),
}


@pytest.mark.parametrize(("options", "says"), STAGE.values(), ids=STAGE)
def test_a_stage_refuses(book: hf.Pipeline, options: dict[str, Any], says: str) -> None:
    with pytest.raises(hf.UsageError) as caught:
        book.stage(**{"name": "keep", **options})(lambda value: value)
    assert says in str(caught.value)
    assert not book.stages


def test_an_async_stage_cannot_run_on_processes(book: hf.Pipeline) -> None:
    with pytest.raises(hf.UsageError, match="is async: it runs on the event loop"):

        @book.stage(executor="processes")
        async def read(number: int) -> int:
            return number


def test_a_stage_option_nobody_knows_is_named(book: hf.Pipeline) -> None:
    with pytest.raises((TypeError, hf.UsageError), match="retries"):
        book.stage(retries=3)(abs)


def test_a_lambda_needs_a_name(book: hf.Pipeline) -> None:
    with pytest.raises(hf.UsageError, match="a lambda has no name"):
        book.stage(lambda value: value)
    book.stage(lambda value: value, name="keep")
    assert [stage.name for stage in book.stages] == ["keep"]


RETRY: dict[str, tuple[Callable[[], Any], str]] = {
    "no attempts": (lambda: hf.Retry(attempts=0), "attempts=0"),
    "too many attempts": (lambda: hf.Retry(attempts=1001), "attempts=1001"),
    "attempts as text": (lambda: hf.Retry(attempts="3"), "attempts='3'"),  # type: ignore[arg-type]
    "attempts that are true": (lambda: hf.Retry(attempts=True), "attempts=True"),
    "within in other words": (lambda: hf.Retry(within="x"), "Retry(within=…)='x'"),
    "one wait": (lambda: hf.Retry(wait="2s"), "the shortest and the longest wait"),  # type: ignore[arg-type]
    "three waits": (lambda: hf.Retry(wait=(1, 2, 3)), "the shortest and the longest wait"),  # type: ignore[arg-type]
    "waits the wrong way round": (lambda: hf.Retry(wait=("30s", "2s")), "must not be longer than the second"),
    "waits in other words": (lambda: hf.Retry(wait=("a", "b")), "Retry(wait=…)='a'"),
    "money below zero": (lambda: hf.Retry(usd=-1), "usd=-1"),
    "money in words": (lambda: hf.Retry(usd="five"), "usd='five'"),
    "a budget of nothing": (lambda: hf.Budget(usd=0), "would let nothing run"),
    "a budget below zero": (lambda: hf.Budget(usd=-5), "usd=-5"),
    "a budget in words": (lambda: hf.Budget(usd="five"), "usd='five'"),
    "a budget without end": (lambda: hf.Budget(usd=math.inf), "usd=inf"),
    "an item that costs nothing": (lambda: hf.Budget(usd=5, item=0), "item must be more than 0"),
    "an item that costs more than all": (lambda: hf.Budget(usd=5, item=6), "at most usd"),
    "a pipeline without a name": (lambda: hf.Pipeline(""), "pipeline name ''"),
    "a pipeline named by a number": (lambda: hf.Pipeline(5), "pipeline name 5"),  # type: ignore[arg-type]
    "files without a key": (lambda: hf.Files("out/page.json"), "key"),
}


@pytest.mark.parametrize(("make", "says"), RETRY.values(), ids=RETRY)
def test_a_policy_refuses(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(hf.UsageError) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1h30m", 5400),
        ("250ms", 0.25),
        (90, 90),
        (1.5, 1.5),
        (dt.timedelta(minutes=2), 120),
        ("1d", 86_400),
    ],
    ids=str,
)
def test_times_are_written_as_people_write_them(text: Any, seconds: float) -> None:
    assert hf.Retry(within=text).policy().within == seconds


def test_a_pipeline_without_stages_cannot_run(book: hf.Pipeline) -> None:
    with pytest.raises(hf.UsageError, match="has no stages"):
        run(book, [1])


def test_a_pipeline_has_64_stages_at_most(book: hf.Pipeline) -> None:
    for number in range(64):
        book.stage(name=f"stage {number}")(lambda value: value + 1)
    with pytest.raises(hf.UsageError, match="64 stages, which is the most allowed"):
        book.stage(name="stage 64")(lambda value: value)
    run(book, [0, 1])
    assert [result.output for result in book.results()] == [64, 65]


class Metrics(BaseModel):
    words: int


def test_what_is_right_is_taken(book: hf.Pipeline) -> None:
    @book.stage(
        name="read",
        retry=hf.Retry(attempts=1, within="1h", wait=(0, 0), usd="0.50"),
        sink=hf.Files("out/{key}.json"),
        timeout="1m",
        concurrency=1,
        executor="threads",
        metrics=Metrics,
    )
    def read(number: int, ctx: hf.Context) -> int:
        ctx.measure(words=1)
        return number

    report = run(
        book,
        [1, 2],
        batch="a/b ü",
        key=lambda number: f"k{number}",
        workers=10_000,
        budget=hf.Budget(usd="0.01", item="0.001"),
        tolerate="0%",
        deadline="1h",
        lease=dt.timedelta(seconds=5),
        verify="full",
        executor="threads",
        identity="key",
        changed="keep",
    )
    assert report.is_complete


def test_a_data_frame_is_asked_for_its_rows(keeping: hf.Pipeline) -> None:
    class Frame(list[str]):
        columns = ("id", "title")

    with pytest.raises(hf.UsageError, match=r'pass its rows, such as frame.to_dict\("records"\)'):
        keeping.run(Frame(["id", "title"]), progress=False)
