"""`holdfast doctor` on a bucket: what it found, and nothing changed."""

from pathlib import Path

import holdfast as hf
from holdfast.runtime.operating.doctor import Level
from holdfast.runtime.operating.doctor_bucket import examine


def test_a_place_without_a_store_is_said_to_be_empty_and_stays_so(tmp_path: Path) -> None:
    found = examine(f"file://{tmp_path}/state")
    assert found.level is Level.OK
    assert "no store in it yet" in found.checks[-1].message
    assert list(tmp_path.iterdir()) == []


def test_batches_chunks_and_leases_are_told(tmp_path: Path) -> None:
    lines = hf.Pipeline("lines", store=f"file://{tmp_path}/state")

    @lines.stage
    def read(line: str) -> str:
        return line.upper()

    lines.run(["a", "b"], progress=False)
    found = examine(f"file://{tmp_path}/state")
    assert found.level is Level.OK
    assert any("1 batches in 1 chunk" in check.message for check in found.checks)


def test_a_damaged_document_is_unsafe_and_named(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_text('{"holdfast": "root", "form')
    found = examine(f"file://{tmp_path}")
    assert found.level is Level.UNSAFE
    assert any("root.json" in check.message for check in found.checks)
