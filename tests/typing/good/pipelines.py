"""A correct program: pipelines. It is type-checked and never run."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, assert_type

from pydantic import BaseModel

import holdfast as hf


class Page(BaseModel):
    number: int
    text: str = ""


class Tokens(BaseModel):
    tokens: int


class Index:
    """Stands for a client of a search engine."""

    def put(self, page: Page) -> bool:
        return bool(page.text)


book = hf.Pipeline("book", store="memory:", key="number", events=["-", print], orphan_after="1h", allow_empty=True)

# -- stages keep the parameters and the answer of their function -------------------------------------------------------


@book.stage
def read(page: Page) -> Page:
    return page


@book.stage(
    name="translated",
    retry=hf.Retry(attempts=5, within="15m", wait=("1s", 30), usd="0.50"),
    sink=hf.Files("out/{batch}/{key:04d}.json", replaces=True),
    timeout="30s",
    concurrency=4,
    executor="threads",
    metrics=Tokens,
    breaker=hf.Breaker(failures=5, pause="1m"),
)
def translate(page: Page, ctx: hf.Context, *, index: Index) -> str:
    ctx.spend(usd="0.01", tokens=12, model="large")
    ctx.measure(tokens=12)
    if ctx.attempt > 3 or ctx.stopping:
        raise hf.Defer(60, "busy")
    if not page.text:
        raise hf.Skip("nothing on it")
    if ctx.deadline is None:
        raise hf.Permanent("endless", "it needs a timeout")
    if not index.put(page):
        raise hf.Transient("not now", code="full", after=3)
    return page.text


@book.stage(breaker=False)
async def send(text: str, ctx: hf.Context | None = None) -> dict[str, int]:
    return {text: 0 if ctx is None else ctx.fence}


class Lengthen:
    def __call__(self, counts: dict[str, int]) -> list[int]:
        return list(counts.values())


lengthen = book.stage(name="lengthen")(Lengthen())
doubled = book.stage(name="doubled")(partial(pow, 2))


def check_calls(page: Page, ctx: hf.Context, index: Index) -> None:
    assert_type(read(page), Page)
    assert_type(read(page=page), Page)
    assert_type(translate(page, ctx, index=index), str)
    assert_type(lengthen({"a": 1}), list[int])
    assert_type(read.name, str)
    plain: Callable[[Page], Page] = read
    plain(page)


async def check_awaits(ctx: hf.Context) -> None:
    assert_type(await send("a"), dict[str, int])
    assert_type(await send("a", ctx=ctx), dict[str, int])


def take(
    anything: hf.Stage, page: hf.Stage[[Page], Page], awaited: "hf.Stage[..., Awaitable[dict[str, int]]]"
) -> list[hf.Stage]:
    """A stage without parameters stands for any stage."""
    return [anything, page, awaited]


take(send, read, send)
wider: hf.Stage[[Page], BaseModel] = read
assert_type(book.stages, list[hf.Stage])

# -- verifiers and adopters follow the output of their stage -----------------------------------------------------------


class Verdict:
    """Stands for the truth values of numpy."""

    def __init__(self, *, truth: bool) -> None:
        self.truth = truth

    def item(self) -> bool:
        return self.truth


@read.verify
def is_read(out: Page) -> bool:
    return out.number > 0


@read.verify
def is_any_model(out: BaseModel) -> bool:
    return bool(out.model_fields_set)


@translate.verify
def is_translated(out: str, page: Page, ctx: hf.Context) -> bool | hf.Bad:
    return hf.Bad("empty") if not out and page.text and ctx.attempt else True


@translate.verify(timeout="10s")
def is_long(out: str) -> bool:
    return len(out) > 3


@translate.verify(timeout=10)
def is_longer(out: str, page: Page, ctx: hf.Context) -> bool:
    return len(out) > len(page.text) + ctx.attempt


@send.verify
def is_sent(out: dict[str, int]) -> bool:
    return bool(out)


@send.verify(timeout="1s")
def is_sent_soon(out: dict[str, int], text: str, ctx: hf.Context) -> bool:
    return text in out and ctx.attempt < 3


@lengthen.verify
def is_numpy_true(out: list[int]) -> Verdict:
    return Verdict(truth=bool(out))


read.verify(lambda out: out.number > 0)
send.verify(lambda out: len(out) > 0)


@read.adopt
def read_before(page: Page, ctx: hf.Context) -> Page | None:
    return page if ctx.idempotency_key in page.text else None


@translate.adopt(timeout="10s")
def always_there(page: Page, ctx: hf.Context) -> str:
    return f"{page.text}{ctx.idempotency_key}"


@send.adopt
def sent_before(text: str, ctx: hf.Context) -> dict[str, int] | None:
    return {text: ctx.attempt}


def check_verifiers(page: Page, ctx: hf.Context) -> None:
    assert_type(is_read(page), bool)
    assert_type(is_translated("a", page, ctx), bool | hf.Bad)
    assert_type(is_long("a"), bool)
    assert_type(is_longer("a", page, ctx), bool)
    assert_type(is_sent({"a": 1}), bool)
    assert_type(is_numpy_true([1]), Verdict)
    assert_type(read_before(page, ctx), Page | None)
    assert_type(always_there(page, ctx), str)
    assert_type(sent_before("a", ctx), dict[str, int] | None)


# -- everything else gives back the function as it is ------------------------------------------------------------------


@book.source
def pages(first: int = 1) -> Iterator[Page]:
    yield Page(number=first)


@book.before
def begin(batch: str) -> int:
    return len(batch)


@book.before
async def begin_without_facts() -> None: ...


@book.after
def end(report: hf.Report, greeting: str = "hello") -> str:
    return greeting + report.batch


@book.on_failure
def bury(letter: hf.DeadLetter) -> str:
    return f"{letter.key} {letter.stage} {letter.code} {letter.reason} {letter.number + letter.attempts}"


@book.on_event
async def hear(event: dict[str, Any]) -> None: ...


@read.before
def begin_to_read(batch: str) -> bytes:
    return batch.encode()


@read.after
def told(statistics: Any) -> dict[str, int]:
    return {"runs": statistics.runs}


@read.on_failure
def not_read() -> float:
    return 1.0


@book.resource
def index() -> Iterator[Index]:
    yield Index()


@book.resource(name="clock", scope="process")
async def make_clock(index: Index) -> Callable[[], float]:
    return lambda: float(index.put(Page(number=1)))


def register_without_decorators(letters: list[hf.DeadLetter]) -> None:
    book.before(lambda: None)
    book.before(print)
    book.after(print)
    book.on_event(print)
    book.on_failure(letters.append)
    book.source(lambda: [1, 2])
    book.resource(name="other")(Index)
    read.before(lambda: None)
    read.on_failure(letters.append)
    read.adopt(lambda page, ctx: Page(number=ctx.attempt))
    translate.adopt(timeout="1s")(lambda page, ctx: None)
    translate.verify(timeout="1s")(lambda out: out.startswith("a"))
    translate.verify(str.isascii)
    assert_type(book.stage(name="upper")(str.upper)("a"), str)
    assert_type(book.stage(Page.model_validate)({}), Page)


async def check_functions(report: hf.Report, letter: hf.DeadLetter) -> None:
    assert_type(pages(first=3), Iterator[Page])
    assert_type(begin("batch"), int)
    assert_type(await begin_without_facts(), None)
    assert_type(end(report, greeting="hi"), str)
    assert_type(bury(letter=letter), str)
    assert_type(await hear({}), None)
    assert_type(begin_to_read(batch="b"), bytes)
    assert_type(told(None), dict[str, int])
    assert_type(not_read(), float)
    assert_type(index(), Iterator[Index])
    assert_type(await make_clock(Index()), Callable[[], float])


# -- what is called on a pipeline --------------------------------------------------------------------------------------


def use(numbers: Iterable[dict[str, int]]) -> None:
    report = book.run(numbers, "first", key=lambda item: item["number"], workers=4, budget=hf.Budget(usd=3, item="0.1"),
                      tolerate="1%", stop_beyond=5, deadline="1h", verify="full", progress=False, changed="rerun",
                      on_code_change="keep", seal=True, signals="report")  # fmt: skip
    assert_type(report, hf.Report)
    for result in report.results():
        assert_type(result, hf.Result)
        assert_type(result.key, str | int)
        assert_type(result.output, Any)  # which stage is the last is not known before it runs
        assert_type(result.number, int)
    for result in book.results("first"):
        assert_type(result, hf.Result)
    assert_type(report.raise_unless_complete(), hf.Report)
    assert_type(report.dead, tuple[hf.DeadLetter, ...])
    assert_type(report.metrics, hf.Statistics)
    assert_type(report.reason, hf.StopReason)
    assert_type(book.report(), hf.Report)
    assert_type(book.plan(numbers), hf.Plan)
    assert_type(book.process({"number": 1}, key="number", deadline=3.5), hf.Processed)
    with book.processor("messages") as one:
        assert_type(one.process({"number": 1}), hf.Processed)
    found = book.reconcile("first")
    assert_type(found, hf.Reconciliation)
    assert_type(found.findings, tuple[hf.Finding, ...])
    assert_type(book.cancel(reason="wrong file"), hf.ActResult)
    book.expect("first", 3)
    book.close("first")
    book.pause(reason="night")
    book.unpause(reason="day")
    assert_type(hf.lambda_handler(book, fail_dead=True, margin="3s"), Callable[[Any, Any], dict[str, Any]])


def told_of(envelope: hf.Envelope) -> str:
    assert_type(envelope.revision, int)
    return f"{envelope.source} {envelope.ingested_at:%Y} {envelope.mapped_digest}"


@book.stage
def with_envelope(page: Page, ctx: hf.Context) -> str:
    return told_of(ctx.envelope)


def first_payload(item: hf.ItemHandle) -> hf.ItemRevision:
    return item.revisions()[0]
