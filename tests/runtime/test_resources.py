"""Resources: what handlers are handed by name, when it is opened and closed, and what becomes of trouble with it."""

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.engine import resources
from holdfast.stores.base import find_batch
from holdfast.testing.rows import Rows
from tests.runtime.support import ONCE, App, Calls, codes, outputs, run, wait_for, walk_of


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    resources.close_kept()


class Client:
    """Something with a life."""

    def __init__(self, told: list[str], name: str = "client") -> None:
        self.told, self.name, self.is_open = told, name, True
        told.append(f"{name} opens")

    def ask(self, number: int) -> int:
        assert self.is_open
        return number * 2

    def close(self) -> None:
        self.is_open = False
        self.told.append(f"{self.name} closes")


def test_a_stage_is_handed_what_it_names(book: hf.Pipeline) -> None:
    told: list[str] = []

    @book.resource
    def client() -> Iterator[Client]:
        made = Client(told)
        yield made
        made.close()

    @book.stage
    def ask(number: int, client: Client) -> int:
        return client.ask(number)

    @book.after
    def end(report: hf.Report) -> None:
        told.append("report")

    assert run(book, range(5)).is_complete
    assert outputs(book) == {n: 2 * n for n in range(5)}
    assert told == ["client opens", "client closes", "report"]
    assert ask(4, Client([])) == 8, "a stage is still a function"


def test_an_async_resource_lives_on_the_loop_in_one_coroutine(book: hf.Pipeline) -> None:
    told: list[Any] = []

    @book.resource
    async def client() -> AsyncIterator[str]:
        told.append(asyncio.current_task())
        await asyncio.sleep(0)
        yield "client"
        await asyncio.sleep(0)
        told.append(asyncio.current_task())

    @book.resource
    async def session(client: str) -> str:
        await asyncio.sleep(0)
        return f"session of {client}"

    @book.stage
    async def ask(number: int, *, session: str, ctx: hf.Context) -> str:
        assert told[0].get_loop() is asyncio.get_running_loop()
        return f"{session}, {ctx.attempt}"

    assert run(book, range(5)).is_complete
    assert set(outputs(book).values()) == {"session of client, 1"}
    assert len(told) == 2
    assert told[0] is told[1], "what has to be left where it was entered is"


@pytest.mark.parametrize(
    "how", ["(value, ctx, client)", "(value, client, ctx)", "(value, *, client)", "(value, given)"]
)
def test_context_and_resources_may_come_in_any_order(book: hf.Pipeline, how: str) -> None:
    book.resource(name="client")(lambda: "client")
    book.resource(name="given")(lambda: "client")

    if how == "(value, ctx, client)":

        @book.stage(name="ask")
        def ask(number: int, ctx: hf.Context, client: str) -> str:
            return f"{client} {ctx.key}"

    elif how == "(value, client, ctx)":

        @book.stage(name="ask")
        def ask_again(number: int, client: str, context: hf.Context) -> str:
            return f"{client} {context.key}"

    elif how == "(value, *, client)":

        @book.stage(name="ask")
        def ask_by_name(number: int, *, client: str = "none") -> str:
            return f"{client} {number}"

    else:

        @book.stage(name="ask")
        def ask_bare(number, given):  # type: ignore[no-untyped-def]
            return f"{given} {number}"

    report = run(book, [7])
    assert report.is_complete, codes(report)
    assert outputs(book) == {7: "client 7"}


@pytest.mark.parametrize("name", ["ctx", "context", "_", "_ctx"])
def test_a_bare_second_parameter_is_the_context_under_its_own_names(book: hf.Pipeline, name: str) -> None:
    book.stage(name="ask")(eval(f"lambda number, {name}: {name}.key"))

    assert run(book, [7]).is_complete
    assert outputs(book) == {7: 7}


@pytest.mark.parametrize("way", ["run", "plan", "process"])
@pytest.mark.parametrize("annotation", [None, "Any", "object"])
def test_a_bare_second_parameter_of_another_name_is_not_the_context(
    book: hf.Pipeline, way: str, annotation: str | None
) -> None:
    def ask(number, client):  # type: ignore[no-untyped-def]
        return number

    ask.__annotations__ = {} if annotation is None else {"client": {"Any": Any, "object": object}[annotation]}
    book.stage(ask)

    with pytest.raises(hf.UsageError, match="stage 'ask' takes 'client', but 'book' has no resource") as refused:
        {"run": lambda: run(book, [1]), "plan": lambda: book.plan([1]), "process": lambda: book.process(1)}[way]()
    assert "name it ctx, or annotate it hf.Context" in str(refused.value)
    assert find_batch(book.store, "book") is None


def test_a_bare_context_gives_way_to_a_resource_of_its_name(book: hf.Pipeline) -> None:
    book.resource(name="context")(lambda: "mine")
    book.stage(name="ask")(lambda number, context: context)

    run(book, [7])
    assert outputs(book) == {7: "mine"}


def test_a_resource_may_be_defined_after_its_stage_and_again(book: hf.Pipeline) -> None:
    @book.stage
    def ask(number: int, word: str) -> str:
        return word

    for said in ("old", "new"):

        @book.resource
        def word(said: str = said) -> str:
            return said

    run(book, [1])
    assert outputs(book) == {1: "new"}


@pytest.mark.parametrize("way", ["run", "plan", "process"])
def test_a_name_that_nobody_defines_is_refused_before_anything(book: hf.Pipeline, way: str) -> None:
    @book.stage
    def ask(number: int, ctx: hf.Context, cleint: str) -> int:
        return number

    with pytest.raises(hf.UsageError, match=r"stage 'ask' takes 'cleint', but 'book' has no resource of that name"):
        {"run": lambda: run(book, [1]), "plan": lambda: book.plan([1]), "process": lambda: book.process(1)}[way]()
    assert find_batch(book.store, "book") is None


def test_what_could_never_be_handed_over_is_refused(book: hf.Pipeline) -> None:
    @contextmanager
    def managed() -> Iterator[int]:
        yield 1

    async def client() -> str:
        return "client"

    with pytest.raises(hf.UsageError, match="is a context manager"):
        book.resource(managed)
    with pytest.raises(hf.UsageError, match="use a valid parameter name"):
        book.resource(lambda: 1)
    with pytest.raises(hf.UsageError, match="scope='forever'"):
        book.resource(scope="forever")(client)  # type: ignore[call-overload]
    with pytest.raises(hf.UsageError, match="lives on the event loop, which is one thread"):
        book.resource(scope="thread")(client)
    with pytest.raises(hf.UsageError, match="takes 'client' by position only"):
        book.stage(name="ask")(_by_position)
    book.resource(client)
    book.stage(name="ask")(lambda number, client: number)
    with pytest.raises(hf.UsageError, match="takes 'client', an async resource, but does not run on the event loop"):
        run(book, [1])


def _by_position(number: int, ctx: Any, client: str, /) -> int:
    return number


def test_resources_that_rest_on_each_other_are_opened_in_order_and_closed_in_reverse(book: hf.Pipeline) -> None:
    told: list[str] = []

    @book.resource
    def session(pool: Client) -> Iterator[Client]:
        made = Client(told, f"session of {pool.name}")
        yield made
        made.close()

    @book.resource
    def pool() -> Iterator[Client]:
        made = Client(told, "pool")
        yield made
        made.close()

    book.stage(name="first")(lambda number: number)
    book.stage(name="ask")(lambda number, session: session.ask(number))
    assert run(book, [1]).is_complete
    assert told == ["pool opens", "session of pool opens", "session of pool closes", "pool closes"]


def test_circles_and_what_would_outlive_what_it_rests_on_are_refused(book: hf.Pipeline) -> None:
    book.stage(name="ask")(lambda number, a: number)
    book.resource(name="a")(lambda b: b)
    book.resource(name="b")(lambda a: a)
    with pytest.raises(hf.UsageError, match="depend on each other in a circle: a → b → a"):
        run(book, [1])
    book.resource(name="a", scope="process")(lambda b: b)
    book.resource(name="b")(lambda: 1)
    with pytest.raises(hf.UsageError, match="has the scope process and takes 'b', which has the shorter scope run"):
        run(book, [1])


@pytest.mark.promise("A7")
@pytest.mark.parametrize("kind", ["plain", "async", "thread", "thread on the loop"])
def test_one_that_cannot_be_opened_is_trouble_of_the_run_and_costs_no_item_anything(
    book: hf.Pipeline, kind: str
) -> None:
    broken = True
    handled = Calls()

    def client() -> str:
        if broken:
            raise ConnectionError("nobody answers")
        return "client"

    async def async_client() -> str:
        return client()

    scope: Any = "thread" if "thread" in kind else "run"
    book.resource(name="client", scope=scope)(async_client if kind == "async" else client)
    if kind in ("async", "thread on the loop"):

        @book.stage(name="ask", retry=ONCE)
        async def ask(number: int, client: str) -> int:
            handled(number)
            return number

    else:
        book.stage(name="ask", retry=ONCE)(lambda number, client: handled(number))
    with pytest.raises(hf.ResourceError, match=r"resource 'client' could not be opened: ConnectionError: nobody ans"):
        run(book, range(5))
    report = book.report()
    assert (report.counts.dead, report.counts.pending, report.totals.attempts, len(handled)) == (0, 5, 0, 0)
    broken = False
    assert run(book).is_complete
    assert book.report().totals.attempts == 5


def test_nothing_is_opened_where_there_is_nothing_to_do(book: hf.Pipeline) -> None:
    opened_ones = Calls()
    book.resource(name="client")(lambda: opened_ones(1))
    book.stage(name="ask")(lambda number, client: number)
    run(book, range(3))
    run(book, range(3))
    assert book.process(1).state == "done"
    assert len(opened_ones) == 1


def test_all_are_opened_before_the_first_item_is_paid_for(book: hf.Pipeline) -> None:
    paid = Calls()
    book.stage(name="pay")(lambda number: paid(number) and number)

    @book.resource
    def index() -> str:
        raise OSError("no such file")

    book.stage(name="store")(lambda number, index: number)
    with pytest.raises(hf.ResourceError, match="no such file"):
        run(book, range(5))
    assert not paid.seen


@pytest.mark.parametrize("error", [hf.Transient("it is starting"), hf.UsageError("set API_KEY")])
def test_one_may_say_itself_what_its_trouble_means(book: hf.Pipeline, error: Exception) -> None:
    @book.resource
    def client() -> str:
        raise error

    book.stage(name="ask")(lambda number, client: number)
    with pytest.raises(type(error), match=str(error)):
        run(book, [1])


def test_one_that_fails_to_close_is_a_warning_and_the_others_are_closed(book: hf.Pipeline) -> None:
    told: list[str] = []

    @book.resource
    def first() -> Iterator[int]:
        yield 1
        told.append("first closes")

    @book.resource
    async def second() -> AsyncIterator[int]:
        yield 2
        raise OSError("the line is cut")

    @book.resource
    def third() -> Iterator[int]:
        yield 3
        yield 4

    @book.stage
    async def ask(number: int, first: int, second: int, third: int) -> int:
        return first + second + third

    report = run(book, [1])
    assert report.is_complete
    assert told == ["first closes"]
    assert any("resource 'second' was not closed: OSError: the line is cut" in text for text in report.warnings)
    assert any("resource 'third' yields a second time" in text for text in report.warnings)


@pytest.mark.parametrize("is_async", [False, True])
def test_one_that_does_not_close_is_left_after_a_while(
    book: hf.Pipeline, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    whole = resources.Resources.close
    monkeypatch.setattr(resources.Resources, "close", lambda self, seconds=0.05: whole(self, 0.05))

    def client() -> Iterator[int]:
        yield 1
        ends.wait(60)

    async def async_client() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(3600)

    book.resource(name="client")(async_client if is_async else client)

    @book.stage
    async def ask(number: int, client: int) -> int:
        return client

    report = run(book, [1])
    ends.set()
    assert report.is_complete
    assert "resource 'client' was not closed" in report.warnings[0]


def test_a_run_that_fails_closes_what_it_opened(book: hf.Pipeline) -> None:
    told: list[str] = []

    @book.resource
    def client() -> Iterator[Client]:
        made = Client(told)
        yield made
        made.close()

    book.stage(name="ask")(lambda number, client: number)

    def source() -> Iterator[int]:
        yield 1
        raise RuntimeError("the file ends")

    with pytest.raises(RuntimeError, match="the file ends"):
        run(book, source())
    run(book, [1])
    assert told == ["client opens", "client closes"] * (len(told) // 2)


# -- scopes ---------------------------------------------------------------------------------------------------------


def test_one_of_the_process_is_kept_for_the_next_run_and_closed_with_the_process(book: hf.Pipeline) -> None:
    told: list[str] = []

    @book.resource(scope="process")
    def model() -> Iterator[Client]:
        made = Client(told, "model")
        yield made
        made.close()

    @book.resource(scope="process")
    async def client() -> AsyncIterator[Client]:
        made = Client(told)
        yield made
        made.close()

    @book.stage
    async def ask(number: int, model: Client, client: Client) -> int:
        return model.ask(client.ask(number))

    for batch in ("one", "two"):
        assert run(book, [1], batch=batch).is_complete
    assert book.process(1, "three").output == 4
    assert told == ["model opens", "client opens"]
    resources.close_kept()
    assert told[2:] == ["client closes", "model closes"]


def test_one_of_the_process_that_is_defined_again_is_closed(book: hf.Pipeline) -> None:
    told: list[str] = []
    book.stage(name="ask")(lambda number, model: number)

    def define(name: str) -> None:
        def model() -> Iterator[Client]:
            made = Client(told, name)
            yield made
            made.close()

        book.resource(scope="process")(model)

    for name in ("old", "new"):
        define(name)
        run(book, [1], batch=name)
    assert told == ["old opens", "new opens", "old closes"]


def test_one_of_the_process_ends_with_its_pipeline(folder: Path) -> None:
    told: list[str] = []

    def once() -> None:
        book = hf.Pipeline("book", store="memory:")

        @book.resource(scope="process")
        def model() -> Iterator[Client]:
            made = Client(told, "model")
            yield made
            made.close()

        book.stage(name="ask")(lambda number, model: number)
        run(book, [1])

    def is_closed() -> bool:
        gc.collect()  # the threads of the run may take a moment to end
        resources.sweep_kept()
        return len(told) > 1

    once()
    wait_for(is_closed)
    assert told == ["model opens", "model closes"]


def test_one_of_a_thread_is_made_for_each_used_by_no_other_and_closed_there(book: hf.Pipeline) -> None:
    """As SQLite wants it: a connection is of use to the thread that opened it, and to no other."""
    threads, ready = set(), threading.Barrier(3, timeout=60)
    closed: list[int] = []

    @book.resource(scope="thread")
    def connection() -> Iterator[sqlite3.Connection]:
        made = sqlite3.connect(":memory:")
        yield made
        made.close()
        closed.append(threading.get_ident())

    @book.stage(retry=ONCE, timeout="60s")
    def ask(number: int, connection: sqlite3.Connection) -> int:
        if number < 3:
            ready.wait()
        threads.add(threading.get_ident())
        return int(connection.execute("select ?", (number,)).fetchone()[0])

    report = run(book, range(30), workers=3)
    assert report.is_complete, codes(report)
    assert not report.warnings
    assert len(threads) == 3
    assert sorted(closed) == sorted(threads)


def test_quick_handlers_with_resources_of_a_thread_stay_on_the_threads_that_close_them(book: hf.Pipeline) -> None:
    opens, closes = Calls(), Calls()

    @book.resource(scope="thread")
    def connection() -> Iterator[int]:
        opens(threading.current_thread().name)
        yield 1
        closes(threading.current_thread().name)

    book.stage(name="ask")(lambda number, connection: number)
    assert run(book, range(3000), workers=2).is_complete
    assert sorted(opens.seen) == sorted(closes.seen)
    assert set(opens.seen) <= {"holdfast-1", "holdfast-2"}


def test_coroutines_share_the_one_of_the_thread_of_the_loop(book: hf.Pipeline) -> None:
    opens, closes = Calls(), Calls()

    @book.resource(scope="thread")
    def connection() -> Iterator[sqlite3.Connection]:
        made = sqlite3.connect(":memory:")
        opens(threading.get_ident())
        yield made
        made.close()
        closes(threading.get_ident())

    @book.stage(retry=ONCE)
    async def ask(number: int, connection: sqlite3.Connection) -> int:
        return int(connection.execute("select ?", (number,)).fetchone()[0])

    report = run(book, range(10))
    assert report.is_complete, codes(report)
    assert opens.seen == closes.seen
    assert len(opens) == 1


def test_an_executor_of_the_users_shares_what_can_be_closed_elsewhere(book: hf.Pipeline) -> None:
    book.resource(name="client")(lambda: 1)
    book.stage(name="ask")(lambda number, client: number)
    with ThreadPoolExecutor(2) as executor:
        assert run(book, range(5), executor=executor).is_complete
        book.resource(name="client", scope="thread")(lambda: 1)
        with pytest.raises(hf.UsageError, match="could not be closed on your own executor"):
            run(book, range(6), executor=executor)


# -- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [None, "60s"])
def test_a_message_is_a_run_of_its_own_and_a_processor_one_for_all_of_its_messages(
    book: hf.Pipeline, deadline: str | None
) -> None:
    told: list[str] = []

    @book.resource
    def plain() -> Iterator[Client]:
        made = Client(told, "plain")
        yield made
        made.close()

    @book.resource
    async def client() -> AsyncIterator[Client]:
        made = Client(told)
        yield made
        made.close()

    @book.resource(scope="thread")
    def connection() -> Iterator[sqlite3.Connection]:
        made = sqlite3.connect(":memory:")
        yield made
        made.close()

    @book.stage(retry=ONCE)
    def first(number: int, plain: Client, connection: sqlite3.Connection) -> int:
        return int(connection.execute("select ?", (plain.ask(number),)).fetchone()[0])

    @book.stage(retry=ONCE)
    async def second(number: int, client: Client) -> int:
        return client.ask(number)

    assert book.process(1, deadline=deadline).output == 4
    once = ["plain opens", "client opens", "client closes", "plain closes"]
    assert told == once
    with book.processor(deadline=deadline) as processor:
        assert [processor.process(n).output for n in (2, 3)] == [8, 12]
    assert told == once * 2


@pytest.mark.parametrize("scope", ["run", "thread"])
@pytest.mark.parametrize("deadline", [None, "60s"])
def test_a_message_whose_resource_cannot_be_opened_is_not_charged_and_comes_again(
    book: hf.Pipeline, scope: Any, deadline: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    @book.resource(scope=scope)
    def client() -> int:
        if broken:
            raise ConnectionError("nobody answers")
        return 1

    book.stage(name="ask", retry=ONCE)(lambda number, client: number)
    with pytest.raises(hf.ResourceError, match="nobody answers"):
        book.process(1, deadline=deadline)
    event = {"Records": [{"messageId": "m", "body": "1"}]}
    handle = hf.lambda_handler(book)
    assert handle(event) == {"batchItemFailures": [{"itemIdentifier": "m"}]}
    assert "resource 'client' could not be opened" in caplog.text
    broken = False
    assert handle(event) == {"batchItemFailures": []}
    assert book.report().totals.attempts == 1


# -- worker processes -----------------------------------------------------------------------------------------------

PROCESSES = """
import os, sys, threading
from pathlib import Path
import holdfast as hf

book = hf.Pipeline("book")

def note(what):
    with open("told.txt", "a") as file:
        file.write(f"{os.getpid()} {what}\\n")

@book.resource
def client():
    if Path("broken").exists():
        raise ConnectionError("nobody answers")
    note("client opens")
    yield "client"
    note("client closes")

@book.resource(scope="process")
def model(client_name: str = "x"):
    note("model opens")
    yield "model"
    note("model closes")

@book.resource(scope="thread")
def connection(model: str):
    note("connection opens")
    yield f"connection of {model}"
    note("connection closes")

@book.stage(executor="processes", timeout="60s", retry=hf.Retry(attempts=1))
def ask(number: int, client: str, connection: str) -> str:
    return f"{client}, {connection}, {os.getpid()}"

if __name__ == "__main__":
    report = book.run(range(8), workers=2, progress=False)
    print(report)
    print({result.output.rpartition(", ")[0] for result in report.results()})
    print("pids", *{result.output.rpartition(", ")[2] for result in report.results()})
    sys.exit(report.exit_code)
"""


@pytest.mark.slow
def test_worker_processes_open_their_own_and_close_them_when_they_end(folder: Path) -> None:
    app = App(folder, PROCESSES)
    (folder / "broken").touch()
    ended = app.run()
    assert ended.returncode == 1
    assert "ResourceError: resource 'client' could not be opened: ConnectionError: nobody answers" in ended.stderr
    (folder / "broken").unlink()
    ended = app.run()
    assert ended.returncode == 0, ended.stderr
    assert "{'client, connection of model'}" in ended.stdout
    pids = next(line for line in ended.stdout.splitlines() if line.startswith("pids")).split()[1:]
    told = [line.split(" ", 1) for line in (folder / "told.txt").read_text().splitlines()]
    for pid in pids:
        mine = [what for who, what in told if who == pid]
        opens = ["client opens", "model opens", "connection opens"]
        assert sorted(mine[:3]) == sorted(opens)
        assert mine[3:] == ["connection closes", "client closes", "model closes"]


EXIT = """
import asyncio
import holdfast as hf

book = hf.Pipeline("book", store="memory:")

@book.resource(scope="process")
async def client():
    yield "client"
    await asyncio.sleep(0)
    print("client closes")

@book.stage
async def ask(number: int, client: str) -> int:
    return number

book.run([1], progress=False)
print("the program ends")
"""


def test_one_of_the_process_is_closed_when_the_program_ends(folder: Path) -> None:
    ended = App(folder, EXIT).run()
    assert (ended.returncode, ended.stdout) == (0, "the program ends\nclient closes\n"), ended.stderr


LEFT_ALONE = """
import asyncio, sys, threading
import holdfast as hf

book = hf.Pipeline("book")
begun = threading.Event()

@book.resource(scope="process")
async def client():
    yield "client"
    print("client closes")

@book.stage(retry=hf.Retry(attempts=1))
async def ask(number: int, client: str) -> int:
    begun.set()
    await asyncio.sleep(3600)
    return number

if sys.argv[1:]:
    report = book.report()
    print(report.counts.dead, report.counts.pending, report.totals.attempts)
else:
    threading.Thread(target=book.run, args=([1],), kwargs={"progress": False}, daemon=True).start()
    begun.wait(60)
"""


def test_a_program_that_ends_under_a_run_charges_nobody(folder: Path) -> None:
    app = App(folder, LEFT_ALONE)
    ended = app.run()
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert app.run("report").stdout == "0 1 0\n"


# -- scans ----------------------------------------------------------------------------------------------------------


def orders(name: str = "orders", **options: Any) -> hf.Scan:
    return walk_of(name, Rows([{"price": n} for n in range(1, 11)]), store="memory:", every=3, **options)


@pytest.mark.parametrize("isolate", [False, True])
def test_the_handler_of_a_scan_takes_them_after_a_star(isolate: bool) -> None:
    told: list[str] = []
    scan = orders(isolate=isolate)

    @scan.resource
    def client() -> Iterator[Client]:
        made = Client(told)
        yield made
        made.close()

    @scan.resource(scope="thread")
    def connection() -> Iterator[sqlite3.Connection]:
        made = sqlite3.connect(":memory:")
        yield made
        made.close()

    @scan.handler
    def add(rows: Any, acc: int, *, client: Client, connection: sqlite3.Connection) -> int:
        (one,) = connection.execute("select 1").fetchone()
        return acc + sum(client.ask(row["price"]) for row in rows) * int(one)

    report = scan.run(progress=False)
    assert report.result == 110
    assert told == ["client opens", "client closes"]
    assert not report.run.warnings


def test_async_handlers_of_scans_share_the_loop_with_everybody(book: hf.Pipeline) -> None:
    scan, loops, told = orders(), set(), []

    @scan.resource
    async def client() -> AsyncIterator[str]:
        loops.add(id(asyncio.get_running_loop()))
        yield "client"
        told.append("client closes")

    @scan.handler
    async def add(rows: Any, acc: int, ctx: hf.Context, *, client: str) -> int:
        loops.add(id(asyncio.get_running_loop()))
        return acc + sum(row["price"] for row in rows)

    @scan.converge
    async def total(parts: list[int]) -> int:
        loops.add(id(asyncio.get_running_loop()))
        return sum(parts)

    @book.stage
    async def read(number: int) -> int:
        loops.add(id(asyncio.get_running_loop()))
        return number

    assert scan.run(progress=False).result == 55
    assert scan.run("again", progress=False).result == 55
    assert run(book, [1]).is_complete
    assert len(loops) == 1
    assert told == ["client closes"] * 2


@pytest.mark.parametrize("scope", ["run", "thread"])
def test_a_scan_whose_resource_cannot_be_opened_is_not_charged(scope: Any) -> None:
    scan, broken = orders(retry=ONCE), True

    @scan.resource(scope=scope)
    def client() -> int:
        if broken:
            raise ConnectionError("nobody answers")
        return 1

    @scan.handler
    def add(rows: Any, acc: int, *, client: int) -> int:
        return acc + client * sum(row["price"] for row in rows)

    with pytest.raises(hf.ResourceError, match="nobody answers"):
        scan.run(progress=False)
    assert scan.report().run.counts.dead == 0
    broken = False
    assert scan.run(progress=False).result == 55


def test_scans_refuse_what_they_could_not_hand_over() -> None:
    scan = orders()

    @scan.handler
    def add(rows: Any, acc: int, *, cleint: int) -> int:
        return acc

    with pytest.raises(hf.UsageError, match="handler 'add' takes 'cleint', but 'orders' has no resource of that name"):
        scan.run(progress=False)

    async def client() -> int:
        return 1

    scan.resource(client)

    @scan.handler
    async def each(part: hf.Partition, *, client: int) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(hf.UsageError, match=r"handler 'each' takes 'client', an async resource.*not a generator"):
        scan.run(progress=False)
    with pytest.raises(hf.UsageError, match=r"as in \(rows, acc, \*, client\)"):
        scan.handler(lambda rows, acc, client: acc)


def test_a_resource_in_the_place_of_the_accumulator_is_refused() -> None:
    scan = orders()
    scan.resource(name="client")(lambda: "client")
    scan.handler(lambda rows, client: None)

    with pytest.raises(hf.UsageError, match=r"takes 'client' as its accumulator.*write it after a \*"):
        scan.run(progress=False)
    assert find_batch(scan.pipeline.store, "orders") is None


def test_the_context_of_a_scan_may_be_called_context() -> None:
    scan, keys = orders(), set()
    scan.handler(lambda rows, context: keys.add(context.key))

    assert scan.run(progress=False).rows == 10
    assert len(keys) == 1


def by_name(rows: Any, *, context: Any) -> None:
    context.append(len(rows))


def second(rows: Any, context: Any) -> None:
    context.append(len(rows))


def third(rows: Any, acc: None, context: Any) -> None:
    context.append(len(rows))


def generated(part: hf.Partition, context: Any) -> Iterator[None]:
    context.append(len([*part]))
    yield


@pytest.mark.parametrize("handler", [by_name, second, third, generated])
def test_the_context_of_a_scan_gives_way_to_a_resource_of_its_name(handler: Any) -> None:
    scan, counts = orders(), list[int]()
    scan.handler(handler)
    scan.resource(name="context")(lambda: counts)

    assert scan.run(progress=False).rows == 10
    assert sum(counts) == 10


def test_a_context_of_a_scan_that_is_annotated_stays_the_context() -> None:
    scan, keys = orders(), set()
    scan.resource(name="context")(lambda: "mine")

    @scan.handler
    def look(rows: Any, *, context: hf.Context) -> None:
        keys.add(context.key)

    assert scan.run(progress=False).rows == 10
    assert len(keys) == 1


def test_a_scan_that_follows_is_not_handed_any() -> None:
    scan = orders(follow=True)
    scan.resource(name="client")(lambda: 1)

    @scan.handler
    def add(rows: Any, *, client: int) -> None: ...

    with pytest.raises(hf.UsageError, match=r"follows its source, so its handler cannot take resources \(client\)"):
        scan.tick()


SCAN = """
import sys
from pathlib import Path
import holdfast as hf
from holdfast.testing.rows import Rows

scan = hf.Scan("orders", Rows([{"price": n} for n in range(1, 11)]), every=3)

@scan.resource
async def client():
    if Path("broken").exists():
        raise ConnectionError("nobody answers")
    yield 2
    Path("closed").touch()

@scan.handler(executor="processes")
async def add(rows, acc: int, *, client: int) -> int:
    return acc + client * sum(row["price"] for row in rows)

if __name__ == "__main__":
    print(scan.run(progress=False).result)
"""


@pytest.mark.slow
def test_the_processes_of_a_scan_open_their_own(folder: Path) -> None:
    app = App(folder, SCAN)
    (folder / "broken").touch()
    ended = app.run()
    assert ended.returncode == 1
    assert "ResourceError: resource 'client' could not be opened: ConnectionError: nobody answers" in ended.stderr
    (folder / "broken").unlink()
    ended = app.run()
    assert (ended.returncode, ended.stdout) == (0, "110\n"), ended.stderr
    assert (folder / "closed").exists()


@pytest.mark.promise("P10")
def test_what_other_threads_have_in_flight_is_kept_when_one_cannot_open_its_resource(book: hf.Pipeline) -> None:
    opened, paying = Calls(), threading.Barrier(4, timeout=60)

    @book.resource(scope="thread")
    def connection() -> int:
        if opened("connection") == 4:
            paying.wait()
            raise ConnectionError("too many connections")
        return 1

    @book.stage(timeout=60)
    def pay(number: int, connection: int, ctx: hf.Context) -> int:
        paying.wait()
        ctx.spend(usd="0.10")
        return number

    with pytest.raises(hf.ResourceError, match="too many connections"):
        run(book, range(4), workers=4)
    report = book.report()
    assert (report.counts.done, report.counts.pending, str(report.totals.usd)) == (3, 1, "0.30")


def test_what_is_taken_is_not_swept_away_in_that_moment() -> None:
    class Thing:
        closed = False

        def close(self, _seconds: float) -> None:
            self.closed = True

    p = hf.Pipeline("p", store="memory:")

    @p.resource(scope="process")
    def client() -> int:
        return 1

    thing: Any = Thing()
    resource = p.resources["client"]
    resources.leave_kept(resource, resources.take_kept(resource, p, lambda: thing, lambda _held: False))
    del p.resources["client"]  # nobody can ask for it again, but for who has it in hand
    sweeper = threading.Thread(target=resources.sweep_kept)

    def look(_held: Any) -> bool:
        sweeper.start()
        sweeper.join(0.2)
        return False

    assert resources.take_kept(resource, p, Thing, look) is thing  # type: ignore[arg-type]
    sweeper.join()
    assert not thing.closed
    resources.leave_kept(resource, thing)
    assert thing.closed
