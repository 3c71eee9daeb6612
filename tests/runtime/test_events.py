"""Events reach their receivers at least once, in order, whatever dies or is down; and delay nobody."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.limits import EVENTS_PAGE
from holdfast.runtime import events as outbox
from holdfast.runtime.events import Delivery, EventFile, Undelivered, Webhook, deliver_all, receiver
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import ONCE, App, run, wait_for


class Inbox:
    """A real HTTP server that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer = 204
        self.on_post: Callable[[dict[str, Any]], None] = lambda event: None
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                inbox.on_post(event)
                if inbox.answer < 300:
                    inbox.got.append(event)
                    inbox.headers.append(dict(self.headers))
                self.send_response(inbox.answer)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook?secret=hush"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine two seconds are short; receivers that are down are not waited for, however long this is."""
    monkeypatch.setattr(outbox, "EVENT_FLUSH_SECONDS", 300.0)


def failing(pipeline: hf.Pipeline) -> hf.Pipeline:
    """Odd pages die."""

    @pipeline.stage(retry=ONCE)
    def read(page: int) -> int:
        if page % 2:
            raise hf.Permanent("torn", f"page {page} is torn")
        return page

    return pipeline


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("dev.holdfast.") for event in events]


def test_a_webhook_gets_cloud_events_in_the_order_in_which_they_became_durable(book: hf.Pipeline, inbox: Inbox) -> None:
    run(failing(book), range(6), events=inbox.url)
    dead = [event for event in inbox.got if event["type"] == "dev.holdfast.item.dead"]
    assert types(inbox.got)[0] == "batch.opened"
    assert sorted(event["data"]["key"] for event in dead) == [1, 3, 5]
    assert len(set(inbox.ids)) == len(inbox.ids)
    event = dead[0]
    assert event["specversion"] == "1.0"
    assert event["subject"] == f"book/{event['data']['key']}"
    assert event["source"].startswith("urn:holdfast:")
    assert event["time"].endswith("Z")
    data = event["data"]
    assert (data["batch"], data["pipeline"], data["stage"], data["code"]) == ("book", "book", "read", "torn")
    assert inbox.headers[0]["Content-Type"].startswith("application/cloudevents+json")
    stored = [each.id for each in book.store.events()]
    assert [int(name.split("-")[1]) for name in inbox.ids] == stored


def test_every_kind_of_receiver_gets_the_same(folder: Path, inbox: Inbox, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[dict[str, Any]] = []
    awaited: list[dict[str, Any]] = []
    book = failing(hf.Pipeline("book", store=folder / "state.db", events=[inbox.url, f"file:{folder}/events.jsonl"]))

    @book.on_event
    def hear(event: dict[str, Any]) -> None:
        heard.append(event)

    @book.on_event
    async def hear_on_the_loop(event: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        awaited.append(event)

    run(book, range(4), events=["-"])
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == heard == awaited == printed == inbox.got
    assert types(heard).count("item.dead") == 2
    run(book, range(4))
    assert len(heard) == len(inbox.got) == len(lines)


def test_a_receiver_that_is_down_delays_nothing_and_loses_nothing(
    book: hf.Pipeline, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    inbox.answer = 503
    failing(book)
    heard: list[dict[str, Any]] = []
    report = run(book, range(20), events=[inbox.url, heard.append])
    assert report.counts.dead == 10
    assert types(heard).count("item.dead") == 10
    assert inbox.got == []
    assert "http://127.0.0.1" in caplog.text
    assert "hush" not in caplog.text
    inbox.answer = 200
    run(book, range(20), events=inbox.url)
    assert types(inbox.got).count("item.dead") == 10
    assert [event["id"] for event in heard] == inbox.ids


def test_a_receiver_that_never_answers_is_left_behind(
    book: hf.Pipeline, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "EVENT_FLUSH_SECONDS", 0.1)
    answered = threading.Event()
    inbox.on_post = lambda event: answered.wait() and None
    report = run(failing(book), range(4), events=inbox.url)
    assert report.counts.dead == 2
    assert not answered.is_set()
    answered.set()


def test_a_redirect_is_no_delivery(book: hf.Pipeline, inbox: Inbox) -> None:
    run(failing(book), range(2))
    inbox.answer = 302
    with pytest.raises(Undelivered, match="302"):
        deliver_all(book.store, Webhook(inbox.url))


def test_a_function_that_raises_gets_the_event_again(book: hf.Pipeline) -> None:
    run(failing(book), range(4))
    calls: list[str] = []

    def moody(event: dict[str, Any]) -> None:
        calls.append(event["id"])
        if len(calls) == 2:
            raise RuntimeError("not now")

    with pytest.raises(Undelivered, match="not now"):
        deliver_all(book.store, receiver(moody))
    deliver_all(book.store, receiver(moody))
    assert calls[1] == calls[2]
    assert calls[:1] + calls[2:] == sorted(set(calls), key=calls.index)


def test_a_user_and_a_password_in_the_url_are_sent_as_such_and_never_shown(book: hf.Pipeline, inbox: Inbox) -> None:
    run(failing(book), range(2))
    to = Webhook(f"http://ada:s%3Acret@127.0.0.1:{inbox.port}/hook?key=hush")
    assert deliver_all(book.store, to) == 3
    assert inbox.headers[0]["Authorization"] == "Basic YWRhOnM6Y3JldA=="
    assert to.title == f"http://127.0.0.1:{inbox.port}/…"
    assert "ada" not in to.name
    assert "hush" not in to.name


def test_each_receiver_has_its_own_place_and_hears_of_its_pipeline_only(folder: Path, inbox: Inbox) -> None:
    store = folder / "state.db"
    run(failing(hf.Pipeline("one", store=store)), range(2))
    run(failing(hf.Pipeline("two", store=store)), range(2), events=inbox.url)
    assert {event["data"]["pipeline"] for event in inbox.got} == {"two"}
    shared = SqliteStore(store)
    assert deliver_all(shared, Webhook(inbox.url)) == 3
    assert deliver_all(shared, Webhook(inbox.url)) == 0
    assert deliver_all(shared, Webhook(inbox.url + "2")) == 6
    assert len(inbox.got) == 12
    shared.close()


def test_several_who_deliver_at_once_leave_no_gap(book: hf.Pipeline, inbox: Inbox) -> None:
    run(failing(book), range(400))
    wanted = [event.id for event in book.store.events(limit=1000)]
    assert len(wanted) > 2 * EVENTS_PAGE - 10
    threads = [threading.Thread(target=deliver_all, args=(book.store, Webhook(inbox.url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted({int(name.split("-")[1]) for name in inbox.ids}) == wanted


KILLED = """
import sys
import holdfast as hf
from holdfast.runtime.events import deliver_all
from holdfast.runtime.events import receiver
from holdfast.stores.sqlite import SqliteStore

print(deliver_all(SqliteStore(".holdfast/state.db"), receiver(sys.argv[1])))
"""


@pytest.mark.parametrize("point", ["delivered.written", "delivered.after"])
@pytest.mark.parametrize("way", ["webhook", "file"])
def test_killed_between_delivering_and_remembering_it_is_delivered_again(
    folder: Path, inbox: Inbox, point: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real kill -9. Whoever comes after delivers what is not remembered: perhaps twice, never not at all."""
    book = failing(hf.Pipeline("book"))
    run(book, range(10))
    wanted = [event.id for event in book.store.events()]
    app = App(folder, KILLED)
    target = inbox.url if way == "webhook" else f"file:{folder}/events.jsonl"
    monkeypatch.setenv("HOLDFAST_FAULT", f"{point}:1:kill")
    assert app.run(target).returncode == -9
    monkeypatch.delenv("HOLDFAST_FAULT")
    ended = app.run(target)
    assert ended.returncode == 0, ended.stderr
    again = len(wanted) if point == "delivered.written" else 0
    assert ended.stdout.split() == [str(again)]
    lines = (folder / "events.jsonl").read_text().splitlines() if way == "file" else []
    ids = inbox.ids if way == "webhook" else [json.loads(line)["id"] for line in lines]
    assert len(ids) == len(wanted) + again
    assert ids[len(wanted) :] == ids[:again], "the same event has the same id"
    assert [int(name.split("-")[1]) for name in ids[: len(wanted)]] == wanted


def test_killed_by_its_receiver_in_the_middle_of_an_event(folder: Path, inbox: Inbox) -> None:
    """The process dies when its third event has arrived and before that is answered."""
    book = failing(hf.Pipeline("book"))
    run(book, range(10))
    wanted = [event.id for event in book.store.events()]
    app = App(folder, KILLED)
    process = app.start(inbox.url)
    inbox.on_post = lambda event: os.kill(process.pid, signal.SIGKILL) if len(inbox.got) == 2 else None
    process.communicate(timeout=60)
    assert process.returncode == -9
    inbox.on_post = lambda event: None
    assert app.run(inbox.url).returncode == 0
    numbers = [int(name.split("-")[1]) for name in inbox.ids]
    assert sorted(set(numbers)) == wanted
    assert numbers[-len(wanted) :] == wanted


def test_a_line_that_a_dead_process_left_unfinished_is_ended_first(folder: Path) -> None:
    file = folder / "events.jsonl"
    file.write_text('{"id": "1"}\n{"id": "hal')
    EventFile(file).take([{"id": "half"}])
    assert file.read_text() == '{"id": "1"}\n{"id": "hal\n{"id":"half"}\n'


def test_a_file_that_cannot_be_written_keeps_its_events(book: hf.Pipeline, folder: Path) -> None:
    run(failing(book), range(2))
    with pytest.raises(Undelivered, match="No such file"):
        deliver_all(book.store, EventFile(folder / "nowhere" / "events.jsonl"))
    (folder / "nowhere").mkdir()
    assert deliver_all(book.store, EventFile(folder / "nowhere" / "events.jsonl")) == 3


def test_a_page_of_other_pipelines_is_passed_over(folder: Path) -> None:
    store = MemoryStore()
    run(failing(hf.Pipeline("one", store=store)), range(2 * EVENTS_PAGE + 2))
    run(failing(hf.Pipeline("two", store=store)), range(2))
    heard: list[dict[str, Any]] = []
    delivery = Delivery(store, "two", receiver(heard.append))
    while delivery.deliver():
        pass
    assert {event["data"]["pipeline"] for event in heard} == {"two"}
    assert len(heard) == 3


def test_who_is_told_to_stop_half_way_goes_on_there_next_time(book: hf.Pipeline) -> None:
    run(failing(book), range(20))
    heard: list[dict[str, Any]] = []
    delivery = Delivery(book.store, "book", receiver(heard.append))
    assert not delivery.deliver(lambda: len(heard) == 3)
    assert len(heard) == 3
    assert deliver_all(book.store, receiver(heard.append)) == len(book.store.events()) - 3
    assert [int(event["id"].split("-")[1]) for event in heard] == [event.id for event in book.store.events()]


@pytest.mark.parametrize(
    "target", ["", "ftp://host/", "http://", "http://ho st/", "http://host:port/", "file:", 7, "slack", "file:/"]
)
def test_what_cannot_receive_is_refused_at_once(target: Any) -> None:
    with pytest.raises(hf.UsageError, match="events"):
        hf.Pipeline("book", events=[target])


def test_a_receiver_named_twice_is_refused(book: hf.Pipeline) -> None:
    with pytest.raises(hf.UsageError, match="twice"):
        run(failing(book), range(2), events=["-", "-"])


def test_events_written_while_a_run_goes_on_are_delivered_before_it_ends(book: hf.Pipeline) -> None:
    heard: list[dict[str, Any]] = []

    @book.stage(retry=ONCE)
    def read(page: int) -> int:
        if page == 0:
            raise hf.Permanent("torn")
        wait_for(lambda: "item.dead" in types(heard))
        return page

    assert run(book, range(2), workers=2, events=heard.append, tolerate="100%").counts.done == 1
