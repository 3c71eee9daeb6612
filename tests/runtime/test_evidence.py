"""Evidence for whoever was not there: whole, it holds; changed in whatever place, it does not."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.canonical import encode
from holdfast.runtime.records import evidence
from holdfast.runtime.records.evidence import check
from tests.runtime.support import ONCE, run

Files = dict[str, bytes]


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
    batch = book.store.batch("moby")
    assert batch is not None
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
    "a hash": change_line("journal.jsonl", 2, lambda line: line.update(hash="00" * 32)),
    "an entry of another number": change_line("journal.jsonl", 2, lambda line: line.update(seq=9)),
    "an entry of another chain": change_line("journal.jsonl", -1, lambda line: line.update(chain=77)),
    "an entry less in the middle": drop_line("journal.jsonl", 1),
    "an entry less at the end": drop_line("journal.jsonl", -1),
    "entries swapped": swap_lines,
    "a head": change_line("chunks.jsonl", 0, lambda line: line.update(head="11" * 32)),
    "a chunk less": drop_line("chunks.jsonl", -1),
    "an item less": drop_line("items.jsonl", 0),
    "an item in another state": change_line("items.jsonl", 0, lambda line: line.update(state="skipped")),
}


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
    batch = book.store.batch("moby")
    assert batch is not None
    run(book, range(5), batch="moby")
    written = evidence.write(book.store, batch, folder / "moby.zip", {})
    assert (written.items, written.is_quiet) == (3, False)
    assert check.check(str(folder / "moby.zip"))["counts"] == {"done": 3}
