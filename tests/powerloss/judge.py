"""Reopens a state of the disk with the real store, and says what is wrong with what it finds."""

from collections import defaultdict
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.runtime.operate import audit
from holdfast.stores.sqlite import SqliteStore
from tests.operations.world import Clock
from tests.powerloss.crash_states import State, Window
from tests.powerloss.recorder import FILES
from tests.powerloss.story import BATCH, KEYS, Story, go_on, rows

BESIDE = ("-shm", "-fence")
"""Files whose content does not matter after a power cut: they come back empty, or not at all."""


class Judge:
    """Knows everything that the store ever held, and how far it had come when it held it."""

    def __init__(self, folder: Path, story: Story) -> None:
        self.path = folder / "state.db"
        folder.mkdir()
        self.moments: defaultdict[bytes, list[int]] = defaultdict(list)
        for moment, content in enumerate(story.contents):
            self.moments[content].append(moment)

    def complain(self, state: State, window: Window, *, thorough: bool = False) -> str | None:
        """What is wrong after a power cut that left this state, or None.

        A complaint begins with one word: `damaged`, `half`, `lost`, `early` or `stuck`. Where it is `thorough`, the
        journal is verified and the work is done to its end.
        """
        self.restore(state)
        clock = Clock()
        try:
            store = SqliteStore(self.path, clock=clock, is_dead=lambda _owner: True)
        except HoldfastError as error:
            return f"damaged: it cannot be opened: {error}"
        try:
            return self._content(store, window) or (self._future(store, clock) if thorough else None)
        except HoldfastError as error:
            return f"damaged: {error}"
        finally:
            store.close()

    def restore(self, state: State) -> None:
        for suffix in BESIDE:
            self._at(suffix).unlink(missing_ok=True)
        for suffix, content in zip(FILES, state, strict=True):
            if content is None:
                self._at(suffix).unlink(missing_ok=True)
            else:
                self._at(suffix).write_bytes(content)

    def _at(self, suffix: str) -> Path:
        return Path(f"{self.path}{suffix}")

    def _content(self, store: SqliteStore, window: Window) -> str | None:
        with store._file.reading() as db:
            found = rows(db)
            sound = db.execute("PRAGMA integrity_check")
        if sound != [("ok",)]:
            return f"damaged: {sound}"
        moments = self.moments.get(found)
        if moments is None:
            return "half: it holds what was never there at once"
        known = window.acknowledged
        if moments[-1] < known:
            return f"lost: {known} things were acknowledged, it holds {moments[-1]}"
        if moments[0] > known + 1:
            return f"early: {known} things were acknowledged, it holds {moments[0]}"
        return None

    def _future(self, store: SqliteStore, clock: Clock) -> str | None:
        """The journal verifies, and the rest of the work comes to its end."""
        for batch in store.batches():
            found = audit.verify(store, batch)
            if not found.holds:
                return f"damaged: {found.findings[0]}"
        before = [chunk.fence for batch in store.batches() for chunk in store.chunks(batch.id)]
        fences = go_on(store, clock)
        if min(fences, default=1 << 62) <= max(before, default=0):
            return f"stuck: fence {min(fences)} was given out after {max(before)}"
        return self._ending(store)

    def _ending(self, store: SqliteStore) -> str | None:
        (batch,) = store.batches(BATCH)
        found = audit.verify(store, batch)
        if not found.holds:
            return f"damaged: after the end: {found.findings[0]}"
        keys = sorted(str(item.key) for item in store.items(batch.id))
        if keys != sorted([*map(str, range(KEYS)), "bad"]):
            return f"lost: after the end it has the items {keys}"
        settled = sum(chunk.counts.settled for chunk in store.chunks(batch.id))
        return None if settled == len(keys) else f"stuck: {settled} of {len(keys)} items came to their end"
