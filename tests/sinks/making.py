"""Outputs and where they come from, for the tests of sinks."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.runtime.sinks import Evidence, Files, Provenance

INPUT = bytes(range(32))


def place(key: str | int = 1, **changes: Any) -> Provenance:
    fields = {"batch": "moby-dick", "stage": "correct", "n": 1, "epoch": 0, "fence": 3, "input_digest": INPUT}
    return Provenance(key=key, **{**fields, **changes})


def output(key: str | int) -> bytes:
    return b'{"key":"%d","text":"Call me Ishmael."}' % key if isinstance(key, int) else b'"text"'


def staged(sink: Files, *keys: str | int, **changes: Any) -> list[Evidence]:
    """Outputs that are durable and wait for their commit; the number of each is its key where that is a number."""
    made = [sink.stage(place(key, **{"n": key if isinstance(key, int) else 1, **changes}), output(key)) for key in keys]
    sink.sync_folders(made)
    return made


def published(sink: Files, *keys: str | int, **changes: Any) -> list[Evidence]:
    made = staged(sink, *keys, **changes)
    sink.publish(made)
    return made


def all_files(root: Path) -> list[str]:
    return sorted(f"{folder}/{name}" for folder, _, names in os.walk(root) for name in names)


def ours(root: Path) -> list[str]:
    """Files of ours that are left below a folder."""
    return [name for name in all_files(root) if "/.holdfast/" in name]


def rest(sink: Files, evidence: Sequence[Evidence]) -> list[str | None]:
    return [sink.check(each, full=True) for each in evidence]
