"""`holdfast demo`: a book through two stages, killed half-way, resumed, added up, reconciled and audited.

Nothing is faked: the kill is a real SIGKILL, the bill is written by the provider, and the command exits with 1 if
anything does not add up.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import holdfast as hf
from holdfast import BatchHandle, HoldfastError, Reconciliation, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import DEFAULT, JsonOption
from holdfast.interfaces.cli.status import picture
from holdfast.runtime.handles.program import load_file

if TYPE_CHECKING:
    from holdfast.runtime.operate.audit import Audit

BATCH = "moby-dick"
PAGES = 447
PRICE = Decimal("5.00")
WORKERS = 16
PATIENCE = 60.0


@dataclass(slots=True)
class DemoLedger:
    """The checks of the demo, and their results."""

    as_json: bool
    checks: list[tuple[str, bool]] = field(default_factory=list)

    def say(self, text: str, style: str = "") -> None:
        if not self.as_json:
            render.say(text, style)

    def check(self, holds: bool, text: str) -> None:
        self.checks.append((text, holds))
        if not self.as_json:
            mark, style = ("ok ", render.GOOD) if holds else ("NOT", render.BAD)
            render.report(f"  {mark}  {text}", indent=7, style=style)

    @property
    def holds(self) -> bool:
        return all(holds for _, holds in self.checks)


def demo(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="The folder to run it in, which is kept. Default: a temporary folder.")
    ] = None,
    after: Annotated[
        int, typer.Option("--kill-after", min=1, max=PAGES - 50, help="Kill the run when this many pages are done.")
    ] = 200,
    pace: Annotated[
        float, typer.Option("--pace", metavar="FACTOR", min=0.5, max=20, help="How much the services are slowed down.")
    ] = 3.0,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="PATH", help=f"The store: a file. Default: {DEFAULT} in that folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a book through two stages, kill it half-way with SIGKILL, resume it, add up the money, verify the journal."""
    ledger = DemoLedger(as_json)
    with _place(folder) as here:
        where = here / DEFAULT if store is None else Path(store).absolute()
        if where.exists():
            raise UsageError(f"{where} is there already: name another folder with --dir, so that the demo starts fresh")
        run = _Demo(here, where, pace, ledger)
        run.until_killed(after)
        run.resume()
        facts = run.add_up()
    if folder is None:
        ledger.say(
            "To inspect it yourself: holdfast demo --dir moby, then cd moby and holdfast why moby-dick 7", render.FAINT
        )
    if as_json:
        render.document(facts | {"checks": dict(ledger.checks), "holds": ledger.holds})
    if not ledger.holds:
        raise typer.Exit(1)


class _Demo:
    """The three acts."""

    def __init__(self, here: Path, where: Path, pace: float, ledger: DemoLedger) -> None:
        self.here, self.where, self.ledger = here, where, ledger
        self.book = find_book()
        self.bill = here / "bill.jsonl"
        self.environment = {
            **os.environ,
            "HOLDFAST_DEMO_LEDGER": str(self.bill),
            "HOLDFAST_DEMO_PACE": str(pace),
            "HOLDFAST_STORE": str(self.where),
        }
        self.command = [
            *(sys.executable, "-m", "holdfast", "run", f"{self.book / 'app.py'}:book"),
            *("--batch", BATCH, "--key", "number", "--workers", str(WORKERS), "--no-progress"),
        ]

    def until_killed(self, after: int) -> None:
        """Start the run in another process, and kill it."""
        say = self.ledger.say
        say("Act 1: a run, and a kill.", render.HEAD)
        say(f"{PAGES} pages of Moby-Dick go through `ocr` and `correct`; correcting all of them costs ${PRICE}.")
        say(f"$ {shown(self.command)}", render.FAINT)
        child = self._start()
        done = self._watch(child, after)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        self.ledger.check(child.returncode == -signal.SIGKILL, f"killed with SIGKILL when {done} pages were done")
        with hf.open(self.where) as there:
            seen = there[BATCH].status()
        say("The store now: every page is in exactly one state.")
        if not self.ledger.as_json:
            render.show(picture(seen))
        total = seen.counts.done + seen.counts.pending
        self.ledger.check(
            total == seen.counts.expected, f"{seen.counts.done} done + {seen.counts.pending} pending = {total}"
        )

    def resume(self) -> None:
        """Run the same command again."""
        self.ledger.say("\nAct 2: the same command again.", render.HEAD)
        self.ledger.say("It resumes where it stopped: finished pages are not done or paid for again.")
        child = self._start()
        report, _ = child.communicate(timeout=PATIENCE)
        self.ledger.say(report.decode().rstrip())
        self.ledger.check(child.returncode == 0, f"it ended with exit code {child.returncode}")

    def add_up(self) -> dict[str, Any]:
        """Check counts, money, files and journal."""
        check = self.ledger.check
        self.ledger.say("\nAct 3: does it add up?", render.HEAD)
        with hf.open(self.where) as there:
            batch = there[BATCH]
            counts = batch.status().counts
            other = counts.settled - counts.done
            sums = f"{counts.expected} expected = {counts.done} done + {other} other + {counts.pending} pending"
            check(counts.expected == counts.done == PAGES, f"pages: {sums}")
            money = self._check_money(batch)
            files = len(list((self.here / "out").glob("page_*.json")))
            check(files == PAGES, f"files: {files} in out/, each with the content that was recorded")
            compared, found = self._looked_at(batch)
        both_ways = f"{compared.observed.files} files read, {len(compared.findings)} findings"
        check(compared.is_explained, f"reconciled: {both_ways}, every page is accounted for")
        chains = render.many(found.chains, "chain")
        seen = f"{found.entries} entries in {chains}, {found.items} items, {found.outputs} outputs"
        check(found.holds, f"journal: {seen} verify")
        for finding in found.findings[:5]:
            self.ledger.say(f"       {finding.where}: {finding.message}", render.BAD)
        if self.ledger.holds:
            self.ledger.say("\nEverything adds up.", render.GOOD)
        else:
            self.ledger.say("\nSomething does not add up.", render.BAD)
        return {"batch": BATCH, "folder": str(self.here), "counts": counts.as_dict(), **money, "audit": found.as_dict()}

    def _check_money(self, batch: BatchHandle) -> dict[str, Any]:
        """Compare the recorded money with the bill of the provider, to the last digit."""
        check = self.ledger.check
        bill = load_file(self.book / "service.py").read_bill(self.bill)
        recorded = batch.status().totals.usd
        check(recorded == PRICE, f"recorded: ${recorded}, the price of {PAGES} pages")
        again = f"${bill.repeated_usd} for pages in flight at the kill"
        check(bill.usd == PRICE + bill.repeated_usd, f"the provider's bill: ${bill.usd} = ${PRICE} + {again}")
        check(bill.repeated <= 2 * WORKERS, f"paid twice: {bill.repeated} pages, with {WORKERS} workers")
        return {
            "recorded_usd": str(recorded),
            "billed_usd": str(bill.usd),
            "repeated": bill.repeated,
            "repeated_usd": str(bill.repeated_usd),
        }

    def _looked_at(self, batch: BatchHandle) -> "tuple[Reconciliation, Audit]":
        """Reconcile and audit, reading the files; their names are relative to the folder of the run."""
        before = Path.cwd()
        os.chdir(self.here)
        try:
            return batch.reconcile(full=True), batch.audit(full=True)
        finally:
            os.chdir(before)

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603  our own command, with arguments of our own
            self.command, cwd=self.here, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def _watch(self, child: "subprocess.Popen[bytes]", after: int) -> int:
        """Read the store until enough pages are done."""
        began = time.monotonic()
        done = shown_at = 0
        while done < after:
            if child.poll() is not None or time.monotonic() - began > PATIENCE:
                child.kill()
                said = (child.communicate()[0] or b"").decode()
                raise HoldfastError(f"the run ended before it could be killed, with {done} pages done: {said}")
            time.sleep(0.02)
            done = self._done()
            if done - shown_at >= 50:
                shown_at = done
                self.ledger.say(f"  {done} of {PAGES} pages done", render.FAINT)
        return done

    def _done(self) -> int:
        if not self.where.exists() or not self.where.stat().st_size:
            return 0
        with hf.open(self.where) as there:
            return there[BATCH].status().counts.done if BATCH in there else 0


def find_book() -> Path:
    """Return the folder of the example, in the source tree or in the installed package."""
    package = Path(hf.__file__).parent
    for place in (package / "_demo" / "book", package.parents[1] / "examples" / "book"):
        if (place / "app.py").is_file():
            return place
    raise UsageError("the book example is not installed: get it from the source tree, examples/book")


def shown(command: list[str]) -> str:
    """Return the command as a person would type it."""
    return " ".join(["holdfast", *command[3:]])


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
