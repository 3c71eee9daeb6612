"""A program with mistakes: pipelines. Each line that a type checker must refuse says so, with mypy's code."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import holdfast as hf

book = hf.Pipeline("book", store="memory:")


@book.stage
def length(word: str) -> int:
    return len(word)


@book.stage(timeout="3s")
async def double(number: int, ctx: hf.Context, *, client: list[str]) -> float:
    return number * 2.0 * len(client) * ctx.attempt


# -- calls -------------------------------------------------------------------------------------------------------------

length(3)  # error: arg-type
length()  # error: call-arg
length("a", "b")  # error: call-arg
length(text="a")  # error: call-arg
word: str = length("a")  # error: assignment
hf.Stage(len)(3)  # error: arg-type
narrow: hf.Stage[[str], bool] = length  # error: assignment
other: hf.Stage[[int], int] = length  # error: assignment


async def use(ctx: hf.Context) -> None:
    await double("a", ctx, client=[])  # error: arg-type
    await double(1, ctx)  # error: call-arg
    number: int = await double(1, ctx, client=[])  # error: assignment
    total: float = double(1, ctx, client=[])  # error: assignment
    await length("a")  # error: misc
    print(number, total)


# -- options -----------------------------------------------------------------------------------------------------------


@book.stage(retries=3)  # error: call-overload, untyped-decorator
def retried(word: str) -> str:
    return word


@book.stage(executor="process")  # error: call-overload, untyped-decorator
def elsewhere(word: str) -> str:
    return word


@book.resource(scope="forever")  # error: call-overload, untyped-decorator
def client() -> Iterator[str]:
    yield "client"


# -- verifiers ---------------------------------------------------------------------------------------------------------


@length.verify  # error: arg-type
def takes_text(out: str) -> bool:
    return bool(out)


@length.verify(timeout="3s")  # error: arg-type
def takes_text_in_time(out: str) -> bool:
    return bool(out)


@length.verify  # error: type-var
def answers_nothing(out: int) -> None:
    print(out)


@length.verify  # error: type-var
def answers_text(out: int) -> str:
    return str(out)


@length.verify  # error: arg-type
def takes_two(out: int, word: str) -> bool:
    return len(word) == out


@length.verify  # error: arg-type
def takes_no_context(out: int, word: str, ctx: hf.Report) -> bool:
    return len(word) == out and ctx.is_complete


@length.verify  # error: type-var
async def waits(out: int) -> bool:
    return bool(out)


@double.verify  # error: arg-type
def takes_the_text_of_a_number(out: str) -> bool:
    return bool(out)


@double.verify(timeout="3s")  # error: arg-type
def takes_that_in_time(out: str) -> bool:
    return bool(out)


@length.verify(within="3s")  # error: call-overload, untyped-decorator
def is_right(out: int) -> bool:
    return bool(out)


length.verify(lambda out: out.startswith("a"))  # error: attr-defined


@length.verify
def is_positive(out: int) -> bool:
    return out > 0


is_positive("a")  # error: arg-type
answer: str = is_positive(3)  # error: assignment


# -- adopters ----------------------------------------------------------------------------------------------------------


@length.adopt  # error: arg-type
def finds_text(word: str, ctx: hf.Context) -> str | None:
    return word if ctx.attempt else None


@double.adopt  # error: arg-type
def finds_the_text_of_a_number(number: int, ctx: hf.Context) -> str:
    return str(number + ctx.attempt)


@length.adopt(timeout="1s")  # error: arg-type
def finds_text_in_time(word: str, ctx: hf.Context) -> str | None:
    return word if ctx.attempt else None


@length.adopt  # error: arg-type
def takes_the_item_alone(word: str) -> int | None:
    return len(word)


# -- hooks and sources -------------------------------------------------------------------------------------------------


@book.source  # error: type-var
def needs_a_number(number: int) -> Iterator[int]:
    yield number


@book.source  # error: type-var
async def is_async() -> AsyncIterator[int]:
    yield 1


@book.source
def words() -> Iterator[str]:
    yield "a"


@book.before  # error: type-var
def takes_a_report(report: hf.Report) -> None:
    print(report)


@book.on_failure  # error: type-var
def takes_a_text(letter: str) -> None:
    print(letter)


@length.on_failure  # error: type-var
def takes_two_letters(letter: hf.DeadLetter, other: hf.DeadLetter) -> None:
    print(letter, other)


@book.on_event  # error: type-var
def takes_no_event() -> None: ...


@book.on_event
def hear(event: dict[str, Any]) -> int:
    return len(event)


@book.after
def end(report: hf.Report) -> str:
    return report.state


words(3)  # error: call-arg
heard: str = hear({})  # error: assignment
end("report")  # error: arg-type

# -- what comes back ---------------------------------------------------------------------------------------------------

book.run(["a"], worker=3)  # error: call-arg
book.run(["a"], verify="sometimes")  # error: arg-type
for result in book.results():
    print(result.value)  # error: attr-defined
for each in book.run().results():
    print(each.outputs)  # error: attr-defined
print(book.process("a").result)  # error: attr-defined
print(hf.Pipelines)  # error: attr-defined
