"""Folders and buckets: by name, from any name on, and what comes later is seen if its name does."""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.core import cursor as cursors_
from holdfast.core.cursor import Cursor
from holdfast.runtime.sources import listing
from holdfast.runtime.sources.base import Malformed, Readable
from tests.sources.reference import cursors


def fill(root: Path, *files: str) -> None:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def named(source: Readable, after: Cursor | None = None, until: Cursor | None = None) -> list[str]:
    rows = [row for page in source.read(after, until) for row in page.rows]
    return [row.where if isinstance(row, Malformed) else row.name for row in rows]


PATHS = st.lists(st.text("a-/0.é", min_size=1, max_size=5).map(lambda p: p.strip("/").replace("//", "/")), max_size=10)


@pytest.mark.promise("B7")
@given(paths=PATHS, parts=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_any_split_and_any_resume_of_a_folder_give_every_file_once(
    paths: list[str], parts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("folder")
    for path in paths:
        if path and ".." not in path and path != "." and "/./" not in f"/{path}/":
            try:
                fill(root, path)
            except OSError:
                continue  # one path is a folder in another
    for source in (hf.Folder(root, hidden=True), hf.Objects(root.as_uri())):
        whole = named(source)
        assert whole == sorted(whole)
        assert [name for span in source.split(parts) for name in named(source, span.after, span.until)] == whole
        for passed, at in enumerate(cursors(source)):
            assert named(source, at) == whole[passed:]


def test_a_file_that_appears_later_is_seen_if_its_name_comes_after_the_cursor(tmp_path: Path) -> None:
    fill(tmp_path, "b", "d")
    source = hf.Folder(tmp_path)
    last = cursors(source)[-1]
    fill(tmp_path, "a", "c", "e", "f/1")
    assert named(source, last) == ["e", "f/1"]


def test_a_name_that_is_not_text_has_a_cursor_that_can_be_kept(tmp_path: Path) -> None:
    for name in (b"a", b"b\xff", b"c"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    source = hf.Folder(tmp_path)
    kept = [None if at is None else cursors_.decode(cursors_.encode(at)) for at in cursors(source)]
    assert [len(named(source, at)) for at in kept] == [3, 2, 1, 0]


def test_many_names_are_cut_evenly_with_few_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "KEPT_NAMES", 64)
    every = [f"{n:06}" for n in range(10_000)]
    spans = listing.split_names(iter(every), 5)
    ends = [int(span.until.value) for span in spans if span.until is not None]
    assert (spans[0].after, ends[-1], len(spans)) == (None, 9_999, 5)
    assert all(abs(end - 2_000 * part) < 300 for part, end in enumerate(ends, 1))


@pytest.mark.parametrize("source", [hf.Folder("x"), hf.Objects("s3://bucket/x")])
def test_a_cursor_of_another_source_is_refused(source: Readable) -> None:
    with pytest.raises(hf.UsageError, match="another source"):
        list(source.read(Cursor("byte", 3), None))


@pytest.mark.parametrize("url", ["ftp://x/y", "s3://", "s3://key:secret@bucket/x", "az://box/x?sig=secret", "bucket"])
def test_a_url_that_is_none_of_a_bucket_or_tells_a_secret_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(hf.UsageError) as caught:
        hf.Objects(url)
    assert "secret" not in str(caught.value)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, source in {
        "obstore": hf.Objects("s3://bucket/x"),
        "pyarrow": hf.Parquet("x.parquet"),
        "httpx": hf.Pages("https://localhost/x", next="next"),
    }.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(hf.UsageError, match=r'pip install "\.\[\w+\]"'):
            list(source)


# -- a real server of S3's protocol ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "endpoint": f"http://{host}:{port}", "client_options": {"allow_http": True}, "region": "us-east-1",
        "access_key_id": "test", "secret_access_key": "very-secret",
    }  # fmt: skip
    import httpx
    import obstore

    httpx.put(f"{options['endpoint']}/scans")
    store = obstore.store.from_url("s3://scans", **options)
    for name in ("in/a.txt", "in/b/1.txt", "in/b.txt", "in/é.txt", "input/no", "other"):
        obstore.put(store, name, name.encode())
    yield options
    server.stop()


def test_the_objects_of_a_bucket_come_by_name_from_any_name_on(bucket: dict[str, Any]) -> None:
    source = hf.Objects("s3://scans/in/", **bucket)
    whole = named(source)
    assert whole == ["in/a.txt", "in/b.txt", "in/b/1.txt", "in/é.txt"]
    assert [named(source, at) for at in cursors(source)] == [whole[n:] for n in range(5)]
    assert [name for span in source.split(3) for name in named(source, span.after, span.until)] == whole
    first = next(iter(source))
    assert isinstance(first, hf.Object)
    assert (first.read_bytes(), first.size, source.natural_key(first)) == (b"in/a.txt", 8, "in/a.txt")
    assert "very-secret" not in first.model_dump_json() + repr(first) + repr(source) + str(source.describe())


def put(bucket: dict[str, Any], *names: str) -> None:
    import httpx

    for name in names:
        assert httpx.put(f"{bucket['endpoint']}/scans/{quote(name)}", content=b"").is_success, name


def test_names_with_odd_characters_are_listed_read_and_gone_on_from(bucket: dict[str, Any]) -> None:
    import obstore

    store = obstore.store.from_url("s3://scans", **bucket)
    odd = ["odd/a b", "odd/a%20b", "odd/a&b=c", "odd/a+b", "odd/a:b", "odd/a?b#c", "odd/日本", "odd/'q\"", "odd/~"]
    for name in odd:
        obstore.put(store, name, name.encode())
    source = hf.Objects("s3://scans/odd", **bucket)
    found = [row for row in source if isinstance(row, hf.Object)]
    assert [row.name for row in found] == sorted(odd)
    assert [row.read_bytes().decode() for row in found] == sorted(odd)
    assert len({row.url for row in found}) == len(odd)
    assert [named(source, at) for at in cursors(source)] == [sorted(odd)[n:] for n in range(len(odd) + 1)]


def test_the_empty_objects_that_consoles_make_for_folders_stop_nothing(bucket: dict[str, Any]) -> None:
    put(bucket, "made/b.txt", "made/b/", "made/b/1", "made/c", "made/c/", "made/d/", "made/e")
    source = hf.Objects("s3://scans/made", **bucket)
    whole = named(source)
    assert whole == ["made/b.txt", "made/b/1", "made/c", "made/e"], "an empty object with a name of its own is one"
    assert [row.read_bytes() for row in source if isinstance(row, hf.Object)] == [b""] * 4
    assert [named(source, at) for at in cursors(source)] == [whole[n:] for n in range(len(whole) + 1)]


def test_a_name_that_is_no_path_is_told_by_name(bucket: dict[str, Any]) -> None:
    put(bucket, "worse/a", "worse//b")
    with pytest.raises(hf.UsageError, match=r"worse//b.*a name that is not a valid path"):
        list(hf.Objects("s3://scans/worse", **bucket))


def test_trouble_with_a_bucket_is_told_by_its_kind(bucket: dict[str, Any]) -> None:
    with pytest.raises(hf.UsageError, match="does not exist"):
        list(hf.Objects("s3://nothing-here/x", **bucket))
    with pytest.raises(hf.UsageError, match="set AWS_ALLOW_HTTP=true"):
        list(hf.Objects("s3://scans/in", **{**bucket, "client_options": {}}))
    nobody = {**bucket, "endpoint": "http://127.0.0.1:9", "retry_config": {"max_retries": 0}}
    with pytest.raises(hf.Transient) as caught:
        list(hf.Objects("s3://scans/in", **nobody))
    assert "secret" not in str(caught.value)


def test_a_scan_of_a_bucket_that_is_not_there_buries_nothing(bucket: dict[str, Any]) -> None:
    scan = hf.Scan("orders", hf.Objects("s3://nothing-here/x", **bucket), store="memory:")
    scan.handler(lambda rows: None)
    with pytest.raises(hf.UsageError, match="the bucket or the object does not exist"):
        scan.run(progress=False)
    assert scan.report().counts.dead == 0


def test_an_option_that_obstore_does_not_know_is_a_usage_error() -> None:
    with pytest.raises(hf.UsageError, match="check the URL, the options"):
        list(hf.Objects("s3://scans/in", nonsense="x"))


def test_a_listing_that_is_not_in_order_is_refused_and_not_half_read(monkeypatch: pytest.MonkeyPatch) -> None:

    import obstore

    when = datetime(2026, 1, 1, tzinfo=UTC)
    found = [{"path": name, "size": 1, "last_modified": when, "e_tag": None} for name in ("b", "a")]
    monkeypatch.setattr(obstore, "list", lambda *_, **__: [found])
    with pytest.raises(hf.SourceChanged, match="not in the order of names"):
        named(hf.Objects("s3://scans", access_key_id="x", secret_access_key="y", region="us-east-1"))
