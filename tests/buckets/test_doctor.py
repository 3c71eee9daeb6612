"""What commands tell of a store in a bucket: what the doctor found, with nothing changed, and how leases are judged."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import holdfast as hf
from holdfast.interfaces.cli.app import call
from holdfast.runtime.operate.doctor import Level, examine_bucket
from holdfast.testing.rows import Rows


def test_a_place_without_a_store_is_said_to_be_empty_and_stays_so(tmp_path: Path) -> None:
    found = examine_bucket(f"file://{tmp_path}/state")
    assert found.level is Level.OK
    assert "no store in it yet" in found.checks[-1].message
    assert list(tmp_path.iterdir()) == []


def test_batches_chunks_and_leases_are_told(tmp_path: Path) -> None:
    lines = hf.Pipeline("lines", store=f"file://{tmp_path}/state")

    @lines.stage
    def read(line: str) -> str:
        return line.upper()

    lines.run(["a", "b"], progress=False)
    found = examine_bucket(f"file://{tmp_path}/state")
    assert found.level is Level.OK
    assert any("1 batches in 1 chunk" in check.message for check in found.checks)


def test_a_damaged_document_is_unsafe_and_named(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_text('{"holdfast": "root", "form')
    found = examine_bucket(f"file://{tmp_path}")
    assert found.level is Level.UNSAFE
    assert any("root.json" in check.message for check in found.checks)


class TestALeaseThatIsHeld:
    """Told by who has just started, as commands have: he knows nothing but what the owner's clock said."""

    def told(self, store: str, *command: str) -> str:
        """What a command says while a scan is under way."""
        totals = hf.Scan("totals", Rows([1, 2, 3]), store=store)
        said: list[str] = []

        @totals.handler
        def look(rows: list[int]) -> None:
            with io.StringIO() as out, redirect_stdout(out):
                assert call([*command, "--store", store]) == 0
                said.append(" ".join(out.getvalue().split()))

        assert totals.run(progress=False).counts.done == 1
        return said[0]

    def test_the_cursor_says_so(self, tmp_path: Path) -> None:
        assert ", as its owner's clock tells" in self.told(f"file://{tmp_path}/state", "cursor", "show", "totals")
        assert "clock tells" not in self.told(str(tmp_path / "state.db"), "cursor", "show", "totals")

    def test_its_document_says_so(self, tmp_path: Path) -> None:
        for store, by_its_clock in ((f"file://{tmp_path}/state", True), (str(tmp_path / "state.db"), False)):
            plain = json.loads(self.told(store, "cursor", "show", "totals", "--json"))
            assert plain["partitions"][0]["lease"]["by_its_clock"] is by_its_clock

    def test_the_doctor_says_so(self, tmp_path: Path) -> None:
        assert "1 held, none stale, by their owners' clocks" in self.told(f"file://{tmp_path}/state", "doctor")
        assert "owners' clocks" not in self.told(str(tmp_path / "state.db"), "doctor")
