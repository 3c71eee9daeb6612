"""The answers of the command on a golden store, without what depends on the moment and the place of asking."""

import contextlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from holdfast.interfaces.cli.app import call
from holdfast.runtime.operate.evidence.check import check
from tests.golden import story

HERE = Path(__file__).parent
KINDS = ("sqlite", "sqlite_6", "bucket", "bucket_2")
"""The stores, by format: the first ones do not say which kind of items a chunk has; the others are the last
of format 1 of the record."""
BATCHES = ("book", "sealed", "paused", "cancelled", "reopened", "mail", "totals", "halfway", "feed")


def url_of(kind: str, folder: Path) -> str:
    return ".holdfast/state.db" if kind.startswith("sqlite") else f"file://{folder}/bucket"


def ask(kind: str, at: float, folder: Path) -> dict[str, Any]:
    """Have the answers of a copy of a golden store, asked in a process whose clock is set."""
    command = [sys.executable, "-m", "tests.golden.ask", kind, repr(at)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    environment.pop("HOLDFAST_STORE", None)
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def answers(store: str) -> dict[str, Any]:
    """Ask everything about every batch; nothing is changed."""
    asked = {"status": _ask("status"), "dead list": _ask("dead", "list"), "events": _ask("events", "--limit", "1000")}
    for batch in BATCHES:
        for command in ("status", "dead list", "orphans", "reconcile", "audit verify"):
            asked[f"{command} {batch}"] = _without_buckets(_ask(*command.split(), batch))
        asked |= {f"why {batch} {key}": _ask("why", batch, key) for key in _keys(batch)}
        asked[f"export {batch}"] = _ask("export", batch)
        asked[f"evidence {batch}"] = _evidence(batch)
    asked |= {f"cursor show {batch}": _ask("cursor", "show", batch) for batch in ("totals", "halfway", "feed")}
    return asked


def resumed(store: str) -> dict[str, Any]:
    """Finish what is left, and ask how it stands then."""
    book, again = story.book(store), story.pages()
    story.BROKEN.discard("later")
    _do("unpause", "paused")
    told: dict[str, Any] = {
        "book": _ended(book.run(again, batch="book", key="name", tolerate=10, progress=False)),
        "paused": _ended(book.run(story.pages(["one", "two"]), batch="paused", key="name", progress=False)),
        "reopened": _ended(book.run(story.pages(["one", "new"]), batch="reopened", key="name", progress=False)),
        "halfway": story.totals(store).run("halfway", progress=False).result,
        "totals": story.totals(store).run("totals", progress=False).result,
        "feed": story.feed(store).tick("feed").total,
        "mail": story.mail(store).process(story.pages(["later"])[0], batch="mail", key="name").state,
    }
    for batch in BATCHES:
        told[f"counts {batch}"] = _ask("status", batch)["answer"]["counts"]
        told[f"audit {batch}"] = _ask("audit", "verify", batch, "--full")["code"]
    return told


def _keys(batch: str) -> list[str]:
    said = _said("export", batch, "--evidence", "--out", "keys.zip", "--json")
    assert said[0] == 0, said
    with zipfile.ZipFile("keys.zip") as archive:
        items = [json.loads(line) for line in archive.read("items.jsonl").splitlines()]
    Path("keys.zip").unlink()
    return [f"#{item['n']}" for item in items]


def _ended(report: Any) -> dict[str, Any]:
    return {"state": report.state, "counts": report.counts.as_dict()}


def _evidence(batch: str) -> Any:
    """Return what an archive shows when it is checked. Ids and salts that the upgrade draws are left out, and so is the
    head, which covers them."""
    _said("export", batch, "--evidence", "--out", "evidence.zip", "--json")
    with zipfile.ZipFile("evidence.zip") as archive:
        told = {"items": [_bare(json.loads(line)) for line in archive.read("items.jsonl").splitlines()]}
    told["shown"] = {name: value for name, value in check("evidence.zip").items() if name != "head"}
    Path("evidence.zip").unlink()
    return told


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"digest": bool(item["digest"]), "outputs": [each | {"digest": None} for each in item["outputs"]]}


def _without_buckets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_buckets(each) for name, each in value.items() if name != "buckets"}
    return [_without_buckets(each) for each in value] if isinstance(value, list) else value


def _do(*args: str) -> None:
    code, out = _said(*args, "--yes", "--actor", "ada", "--reason", "a golden store")
    assert code == 0, out


def _ask(*args: str) -> dict[str, Any]:
    code, out = _said(*args, "--json")
    has_lines = args[0] == "export" and code == 0
    return {"code": code, "answer": [*map(json.loads, out.splitlines())] if has_lines else json.loads(out)}


def _said(*args: str) -> tuple[int, str]:
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        code = call(args)
    return code, said.buffer.getvalue().decode().replace(str(Path.cwd()), "HERE")  # type: ignore[attr-defined]
