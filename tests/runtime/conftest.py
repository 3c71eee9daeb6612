"""Fixtures of the runtime: a folder to work in, a store in it, and pipelines that are restarted with it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own: relative paths and the default store end up there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    return tmp_path


@pytest.fixture
def restart(folder: Path) -> Callable[..., hf.Pipeline]:
    """`restart(define)` is what a process does when it starts: a new pipeline on the same file."""

    def again(define: Callable[[hf.Pipeline], None], name: str = "book") -> hf.Pipeline:
        pipeline = hf.Pipeline(name, store=folder / "state.db")
        define(pipeline)
        return pipeline

    return again


@pytest.fixture
def book(folder: Path) -> hf.Pipeline:
    return hf.Pipeline("book", store=folder / "state.db")
