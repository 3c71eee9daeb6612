"""Why an item is where it is, from its journal, in plain words."""

from pathlib import Path

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core import canonical
from holdfast.core.errors import UsageError
from holdfast.core.journal import Spend
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.report import why
from tests.operations.world import World, deferred, done, failed, skipped

BY = Actor(name="ada", reason="the provider was down")


def told(world: World, key: str) -> list[str]:
    return [event.what for event in why.tell(world.store, world.batch, key).events]


@pytest.mark.promise("E12")
def test_the_story_of_a_dead_letter_from_admission_to_redrive(world: World) -> None:
    world.add("page", "other")
    world.work(lambda item: done(item, spend=Spend(item.n, usd=canonical.to_units("0.02"), tokens=120, model="small")))
    world.work(lambda item: failed(item) if item.key == "page" else done(item))
    for _ in range(2):
        world.clock.advance(10.0)
        world.work(failed)
    tale = why.tell(world.store, world.batch, "page")
    whats = [event.what for event in tale.events]
    assert whats == [
        "admitted",
        "claimed",
        "attempt",
        "checkpoint",
        "claimed",
        "attempt",
        "claimed",
        "attempt",
        "claimed",
        "attempt",
    ]
    text = str(tale)
    assert "attempt 1 at 'ocr' succeeded after 500 ms, queued 250 ms, $0.02, 120 tokens, small" in text
    assert "attempt 3 at 'correct' failed after 1.5 s: http_503: overloaded (3 of 3 attempts used); buried" in text
    assert "claimed by host-a pid 4711 under fence 1" in text
    assert "Now:  a dead letter at 'correct': http_503" in text
    assert "holdfast dead redrive moby-dick page --reason" in text
    operations.redrive(world.store, world.batch, BY, ["page"])
    after = why.tell(world.store, world.batch, "page")
    assert after.events[-1].text == "redriven by ada (dead became pending): the provider was down"
    said = "redriven by ada (dead became pending): the provider was down"
    assert after.now == f"ready at 'correct'. Last act: {said}."


def test_an_item_that_waits_says_until_when(world: World) -> None:
    world.add("page")
    world.work(lambda item: deferred(item, 90.0))
    claim = world.claim()
    world.commit(claim, [], due=world.clock() + 90.0)
    tale = why.tell(world.store, world.batch, "page")
    assert tale.now == "waits at 'ocr' until 2023-11-14 22:14:50Z, 1 min 30 s from now (deferred: too early)."
    assert tale.next == "a run claims it when it is due."


def test_an_item_in_flight_names_its_owner_and_fence(world: World) -> None:
    world.add("page")
    world.claim()
    tale = why.tell(world.store, world.batch, "page")
    assert told(world, "page") == ["admitted", "claimed"]
    assert "held by host-a pid 4711 under fence 1" in tale.now


def test_a_grant_that_died_is_told(world: World) -> None:
    world.add("page")
    world.claim(seconds=30.0)
    world.clock.advance(31.0)
    world.work(done, owner="host-b/boot/ns/5/6/cafe")
    assert told(world, "page") == ["admitted", "claimed", "interrupted", "claimed", "attempt", "checkpoint"]


def test_grants_that_did_nothing_to_the_item_are_not_told(world: World) -> None:
    world.add("a", "b")
    for _ in range(3):
        world.work(lambda item: deferred(item, 0.0) if item.key == "a" else None)
    assert told(world, "b") == ["admitted"]
    assert told(world, "a").count("claimed") == 3


def test_an_item_in_a_chunk_that_was_cut_off_has_one_story(world: World) -> None:
    world.add(*"abcd")
    world.work(done)
    world.work(done, limit=1)
    world.work(done, limit=1)
    world.work(done, limit=2)
    assert len(world.store.chunks(world.id)) == 3
    for key in "abcd":
        assert told(world, key) == ["admitted", *["claimed", "attempt", "checkpoint"] * 2]


def test_a_reset_in_flight_is_told_with_what_it_cost(world: World) -> None:
    world.add("page")
    world.claim()
    operations.reset(world.store, world.batch, BY, "page")
    tale = why.tell(world.store, world.batch, "page")
    assert [event.what for event in tale.events] == ["admitted", "claimed", "reset"]
    assert "its owner was fenced off" in tale.events[-1].text
    assert tale.events[-1].facts["reason"] == "the provider was down"


def test_what_was_refused_at_the_boundary_says_so(world: World) -> None:
    world.add_invalid("odd")
    tale = why.tell(world.store, world.batch, "odd")
    assert "refused at the boundary: invalid" in tale.events[0].text
    assert "Field required" in tale.now


def test_settled_items_need_nothing(world: World) -> None:
    world.add("page", "blank")
    world.work(lambda item: skipped(item) if item.key == "blank" else done(item))
    world.finish()
    assert why.tell(world.store, world.batch, "page").now == "done: its output is in the store."
    assert why.tell(world.store, world.batch, "blank").now == "skipped at 'ocr': blank page."


def test_the_story_as_data_names_the_entries(world: World) -> None:
    world.add("page")
    world.finish()
    plain = why.tell(world.store, world.batch, "page").as_dict()
    assert plain["events"][0]["entry"] == "entry 2 of batch 1"
    assert plain["events"][2]["entry"] == "entry 2 of chunk 1"
    assert plain["events"][2]["seconds"] == 0.5


def test_an_unknown_item_is_answered_with_similar_ones(world: World) -> None:
    world.add("page-0041")
    with pytest.raises(UsageError, match="did you mean 'page-0041'"):
        why.tell(world.store, world.batch, "page-041")


def test_an_item_of_a_pipeline_is_not_a_row_of_a_scan_whatever_its_key_says(tmp_path: Path) -> None:
    book = hf.Pipeline("book", store=tmp_path / "state.db")

    @book.stage
    def read(page: Page) -> int:
        return page.number

    book.run([{"key": "row 7", "number": "seven"}], key="key", progress=False)
    told = why.tell(book.store, book.store.batches()[0], "row 7")
    assert any("refused at the boundary" in event.text for event in told.events)
    assert not any("could not be handled" in event.text for event in told.events)


class Page(BaseModel):
    key: str
    number: int
