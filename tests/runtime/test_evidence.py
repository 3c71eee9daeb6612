"""Evidence for whoever was not there: whole, it holds; changed in whatever place, it does not."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import journal, sections
from holdfast.core.canonical import encode
from holdfast.runtime.operate import evidence
from holdfast.runtime.operate.evidence import check
from holdfast.stores.memory import MemoryStore
from tests.operations.test_audit import live_a_little
from tests.operations.world import Clock, World
from tests.runtime.support import ONCE, run

Files = dict[str, bytes]
CHANGED = "A" * 40
"""A frame of words that no entry commits to, in base64."""


@pytest.fixture
def bundle(folder: Path, book: hf.Pipeline) -> Path:
    """Of a sealed batch with a history: retried, skipped, dead, worked on in many chunks."""

    @book.stage(retry=ONCE)
    def read(number: int) -> str:
        if number % 7 == 3:
            raise hf.Skip("blank")
        if number % 11 == 5:
            raise hf.Permanent("torn", "the secret page is torn")
        return f"text of {number}"

    run(book, range(60), workers=2, batch="moby")
    return write(book, folder / "moby.zip", seal=True)


def write(book: hf.Pipeline, path: Path, *, seal: bool) -> Path:
    (batch,) = book.store.batches("moby")
    if seal:
        batch = book.store.seal(batch.id, actor="ann", reconciliation=encode({}), reason="read by two")
    evidence.write(book.store, batch, path, {"unexplained": 0})
    return path


def parts(path: Path) -> Files:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def put(path: Path, files: Files, *, honest: bool = False) -> Path:
    """The files as a bundle again; `honest` makes a manifest that fits them, as a forger would."""
    if honest:
        manifest = json.loads(files["MANIFEST.json"])
        manifest["files"] = {
            name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "MANIFEST.json"
        }
        files = files | {"MANIFEST.json": json.dumps(manifest).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def change_line(name: str, number: int, change: Callable[[dict[str, Any]], None]) -> Callable[[Files], None]:
    def apply(files: Files) -> None:
        lines = files[name].splitlines()
        line = json.loads(lines[number])
        change(line)
        lines[number] = json.dumps(line).encode()
        files[name] = b"\n".join(lines) + b"\n"

    return apply


def change_words(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[Files], None]:
    """Change the words beside the first entry that has some."""

    def apply(files: Files) -> None:
        lines = map(json.loads, files["journal.jsonl"].splitlines())
        number = next(at for at, line in enumerate(lines) if line["texts"])
        change_line("journal.jsonl", number, lambda line: change(line["texts"]))(files)

    return apply


def drop_line(name: str, number: int) -> Callable[[Files], None]:
    def apply(files: Files) -> None:
        lines = files[name].splitlines()
        del lines[number]
        files[name] = b"\n".join(lines) + b"\n"

    return apply


def swap_lines(files: Files) -> None:
    lines = files["journal.jsonl"].splitlines()
    lines[-1], lines[-2] = lines[-2], lines[-1]
    files["journal.jsonl"] = b"\n".join(lines) + b"\n"


FORGERIES: dict[str, Callable[[Files], None]] = {
    "a body": change_line("journal.jsonl", 1, lambda line: line.update(body=line["body"][:-8] + "AAAAAAAA")),
    "a header": change_line("journal.jsonl", 2, lambda line: line.update(head=line["head"][:-8] + "AAAAAAAA")),
    "a grant": change_line("journal.jsonl", -1, lambda line: line.update(grant="00" * 8)),
    "a hash": change_line("journal.jsonl", 2, lambda line: line.update(hash="00" * 32)),
    "an entry of another number": change_line("journal.jsonl", 2, lambda line: line.update(seq=9)),
    "an entry of another chain": change_line("journal.jsonl", -1, lambda line: line.update(chain=77)),
    "an entry less in the middle": drop_line("journal.jsonl", 1),
    "an entry less at the end": drop_line("journal.jsonl", -1),
    "entries swapped": swap_lines,
    "a word": change_words(lambda texts: texts[0].update(frame=CHANGED)),
    "whose words they are": change_words(lambda texts: texts[0].update(n=texts[0]["n"] + 1)),
    "a word that nothing refers to": change_words(lambda texts: texts.append({**texts[0], "frame": CHANGED})),
    "the range of a chunk": change_line("chunks.jsonl", 0, lambda line: line.update(lo=1)),
    "the parent of a chunk": change_line("chunks.jsonl", 0, lambda line: line.update(parent=9)),
    "a head": change_line("chunks.jsonl", 0, lambda line: line.update(head="11" * 32)),
    "a chunk less": drop_line("chunks.jsonl", -1),
    "an item less": drop_line("items.jsonl", 0),
    "an item in another state": change_line("items.jsonl", 0, lambda line: line.update(state="skipped")),
    "an item at another stage": change_line("items.jsonl", 3, lambda line: line.update(stage="end")),
    "an item of another epoch": change_line("items.jsonl", 0, lambda line: line.update(epoch=1)),
    "the digest of a payload": change_line("items.jsonl", 0, lambda line: line.update(digest="22" * 32)),
    "the digest of an output": change_line("items.jsonl", 0, lambda line: line["outputs"][0].update(digest="22" * 32)),
    "the revision of a payload": change_line("items.jsonl", 0, lambda line: line.update(revision=1)),
    "the parent of an item": change_line("items.jsonl", 0, lambda line: line.update(parent=4)),
    "no digest of an output": change_line("items.jsonl", 0, lambda line: line["outputs"][0].update(digest=None)),
    "an output less": change_line("items.jsonl", 0, lambda line: line.update(outputs=[])),
    "the reason of a death": change_line("items.jsonl", 5, lambda line: line.update(reason="it was nobody")),
    "the code of a death": change_line("items.jsonl", 5, lambda line: line.update(code="fine")),
    "what an entry is said to say": change_line("journal.jsonl", 1, lambda line: line.update(says={"type": "fine"})),
    "who is said to have written it": change_line("journal.jsonl", 1, lambda line: line.update(actor="somebody")),
    "when it is said to have been": change_line("journal.jsonl", 1, lambda line: line.update(at=1.0)),
    "a word beside an entry": change_line("journal.jsonl", 1, lambda line: line.update(note="approved")),
    "the definition": lambda files: files.update({"definition.json": b'{"stages": []}'}),
    "the seal": lambda files: files.update({"seal.json": b'{"reason": "approved"}'}),
}
KEPT: dict[str, Callable[[Files], None]] = {
    "a key": change_line("items.jsonl", 0, lambda line: line.update(key="999")),
    "what was observed": lambda files: files.update({"reconciliation.json": b'{"unexplained": 0, "forged": true}'}),
}
"""What the journal does not know: only the head tells."""


@pytest.mark.promise("E12", "A14")
def test_a_whole_bundle_holds_with_nothing_but_python(bundle: Path, folder: Path) -> None:
    script = folder / "check.py"
    script.write_bytes(parts(bundle)["check.py"])
    command = [sys.executable, "-I", "-S", str(script), str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "It holds. Batch 'moby'" in done.stdout
    assert "47 done" in done.stdout
    assert "Sealed: 'read by two'." in done.stdout
    assert json.loads(parts(bundle)["seal.json"])["reason"] == "read by two"


@pytest.mark.promise("E12")
@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_bundle_does_not(what: str, bundle: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = parts(bundle)
    FORGERIES[what](files)
    assert check.main([str(put(folder / "careless.zip", files))]) == 1
    assert "was changed after the bundle was made" in capsys.readouterr().out
    assert check.main([str(put(folder / "forged.zip", files, honest=True))]) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


@pytest.mark.promise("E12")
@pytest.mark.parametrize("what", KEPT)
def test_what_the_journal_does_not_know_changes_the_head(what: str, bundle: Path, folder: Path) -> None:
    files = parts(bundle)
    KEPT[what](files)
    forged = check.check(str(put(folder / "forged.zip", files, honest=True)))
    assert forged["head"] != check.check(str(bundle))["head"]


@pytest.mark.promise("E12")
def test_a_journal_written_again_as_a_whole_has_another_head(folder: Path, book: hf.Pipeline) -> None:
    """Of a batch that is not sealed, too: its own chain does not cover those of its chunks."""

    @book.stage(retry=ONCE)
    def read(number: int) -> int:
        if number == 1:
            raise hf.Permanent("fraud", "caught")
        return number

    run(book, range(3), batch="moby")
    honest = write(book, folder / "moby.zip", seal=False)
    files = parts(honest)
    rewrite(files)
    forged = check.check(str(put(folder / "forged.zip", files, honest=True)))
    assert (forged["counts"], forged["sealed"]) == ({"done": 3}, False)
    assert forged["head"] != check.check(str(honest))["head"]


def rewrite(files: Files) -> None:
    """Every chunk's chain, and the items with them: all succeeded at once."""
    entries = [json.loads(line) for line in files["journal.jsonl"].splitlines()]
    kept = [entry for entry in entries if entry["chain"] == 0]
    (began,) = (entry for entry in kept if entry["kind"] == "ingested" and entry["says"].get("hi", 0) > 0)
    ns, prev = range(began["says"]["hi"]), bytes.fromhex(began["hash"])
    digests = bytes(32 * len(ns))
    done = journal.Advanced(stage=0, items=journal.numbers(ns), digests=digests, queued=b"", seconds=b"", finished=True)
    chunk, batch = began["says"]["chunk"], json.loads(files["MANIFEST.json"])["batch"]
    chain, told = journal.Chain(bytes.fromhex(batch["uid"]), chunk, chunk), evidence._ToldWords(False)
    bodies = [journal.Claimed(lo=0, hi=len(ns), expires=0.0), journal.Checkpointed(advanced=[done], released=True)]
    for seq, body in enumerate(bodies, 1):
        encoded = sections.encode(body, chain.uid, chunk, b"", os.urandom)
        entry = journal.link(prev, chain, seq=seq, kind="x", at=1.0, actor="x", fence=1, encoded=encoded)
        kept.append(told.line((chunk, entry)))
        prev = entry.hash
    end = {"number": chunk, "id": chunk, "lo": 0, "hi": len(ns), "parent": None, "seq": 2, "head": prev.hex()}
    items = [json.loads(line) for line in files["items.jsonl"].splitlines()]
    for item in items:
        made = {"stage": "read", "epoch": 0, "digest": "00" * 32, "file": None, "file_sha256": None}
        item.update(state="done", stage="end", code="", reason="", outputs=[made])
    for name, rows in (("journal.jsonl", kept), ("chunks.jsonl", [end]), ("items.jsonl", items)):
        files[name] = b"".join(evidence._json(row).encode() + b"\n" for row in rows)


@pytest.mark.promise("E12")
def test_a_bundle_made_later_of_the_same_batch_has_the_same_head(bundle: Path, folder: Path, book: hf.Pipeline) -> None:
    (batch,) = book.store.batches("moby")
    again = evidence.write(book.store, batch, folder / "again.zip", {"unexplained": 0}, made_by="a later version")
    first = check.check(str(bundle))["head"]
    assert (again.head, check.check(str(folder / "again.zip"))["head"]) == (first, first)


@pytest.mark.promise("E12")
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happened_a_bundle_holds(seed: int, tmp_path: Path) -> None:
    clock = Clock()
    world = World(MemoryStore(clock=clock), clock)
    live_a_little(world, seed, to_the_end=seed % 2 == 0)
    evidence.write(world.store, world.batch, tmp_path / "e.zip", {})
    assert sum(check.check(str(tmp_path / "e.zip"))["counts"].values()) == 63


HOSTILE: dict[str, bytes] = {
    "not an object": b"[]", "null": b"null", "a number": b"7", "nothing": b"", "deep": b"[" * 100_000,
    "no fields": b"{}", "not text": b"\xff\xfe",
    "wrong types": b'{"format": 3, "quiet": 1, "redacted": 0, "batch": 3, "files": []}',
}  # fmt: skip


@pytest.mark.parametrize("name", ["MANIFEST.json", "chunks.jsonl", "journal.jsonl", "items.jsonl", "definition.json"])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_bundle_is_refused_without_a_traceback(
    name: str, what: str, bundle: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = parts(bundle)
    files[name] = HOSTILE[what]
    assert check.main([str(put(folder / "hostile.zip", files, honest=name != "MANIFEST.json"))]) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_files_that_are_added_or_removed_are_noticed(bundle: Path, folder: Path) -> None:
    files = parts(bundle)
    with pytest.raises(check.Wrong, match="added or removed"):
        check.check(str(put(folder / "more.zip", files | {"extra.txt": b""})))
    del files["definition.json"]
    with pytest.raises(check.Wrong, match="added or removed"):
        check.check(str(put(folder / "less.zip", files)))


def test_neither_payloads_nor_salts_are_in_it(folder: Path, book: hf.Pipeline) -> None:
    @book.stage
    def read(page: dict[str, str]) -> str:
        return f"out {page['secret']}"

    run(book, [{"id": "a", "secret": "hunter2"}], key="id", batch="moby")
    item = book.store.items(book.store.batches()[0].id)[0]
    files = parts(write(book, folder / "moby.zip", seal=False))
    whole = b"".join(files.values())
    assert b"hunter2" not in whole
    assert item.salt.hex().encode() not in whole
    found = check.check(str(folder / "moby.zip"))
    assert (found["sealed"], found["counts"]) == (False, {"done": 1})


def test_who_asks_wrongly_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 2
    (folder / "no.zip").write_bytes(b"PK")
    assert check.main([str(folder / "no.zip")]) == 1
    assert check.main([str(folder / "none.zip")]) == 1
    assert capsys.readouterr().out.count("DOES NOT HOLD") == 2


def test_evidence_of_a_batch_that_takes_items_meanwhile_holds(folder: Path, book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    run(book, range(3), batch="moby")
    (batch,) = book.store.batches("moby")
    run(book, range(5), batch="moby")
    written = evidence.write(book.store, batch, folder / "moby.zip", {})
    assert (written.items, written.is_quiet) == (3, False)
    assert check.check(str(folder / "moby.zip"))["counts"] == {"done": 3}
