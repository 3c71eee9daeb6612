"""From a source to items: validate, key, freeze, admit in groups. Runs on the thread that called `run()`."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, repeat
from typing import Any

import msgspec
import uuid_utils
from pydantic import BaseModel

from holdfast.core import canonical, ingest
from holdfast.core.errors import HoldfastError, PayloadChanged
from holdfast.core.limits import INGEST_BYTES, INGEST_FIRST_GROUP, INGEST_GROUP, READ_AHEAD, REQUEST_HINT_CHARS
from holdfast.core.model import Admitted, Batch, ItemNo, ItemOrigin, Key, Kind, NewItem, State
from holdfast.runtime.define.options import Changed, Identity, KeyFrom
from holdfast.runtime.define.schema import Invalid, Schema, raw_bytes
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.sources.base import AtHand, Comparing, Malformed, Notice, Outage, Patient
from holdfast.stores.base import Store

TAKEN = 512
"""Items taken from a quick source at once."""
CROWDED_GROUP = 4_000
"""Items admitted in one write if commits of thousands of items a second wait for that write."""
GROUP_SECONDS = 0.25
"""Items that a source gives in this time are admitted, however few they are."""


_as_given = msgspec.json.Encoder().encode


class InHand:
    """Items that were taken from a source and are not admitted yet. The calling thread adds them; the worker may admit
    the first ones while the source keeps that thread waiting."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.group: list[NewItem] = []
        """The items that the source has given so far; it only grows."""
        self.since = math.inf
        """Since when the source is asked for more; infinite while it is not."""
        self.early = 0
        """How many of the items the worker has admitted."""
        self.settle_later: list[tuple[list[NewItem], Admitted]] = []
        """The results: the calling thread handles payloads that changed."""

    def begin(self) -> list[NewItem]:
        """Begin a group."""
        with self.lock:
            self.group, self.early, self.settle_later = [], 0, []
            return self.group

    def left_waiting(self) -> list[NewItem]:
        """Return the items that have waited too long to be admitted."""
        return self.group[self.early :] if time.monotonic() - self.since > GROUP_SECONDS else []

    def rest(self) -> list[NewItem]:
        """Return the items that are still to be admitted, once the source is not asked for more."""
        with self.lock:
            return self.group[self.early :]


class Ingester:
    """Reads a source beside the workers and admits new items."""

    def __init__(
        self,
        store: Store,
        batch: Batch,
        schema: Schema,
        *,
        key: KeyFrom,
        identity: Identity,
        changed: Changed,
        owner: str,
        rerun: Callable[[ItemNo, NewItem, ItemOrigin], None],
        kind: Kind = Kind.ITEMS,
        patience: float = 0.0,
        stilled: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.store = store
        self.batch = batch
        self.schema = schema
        self.key = key
        self.identity = identity
        self.changed = changed
        self.owner = owner
        self.rerun = rerun
        self.kind = kind
        self.patience = patience
        self.stilled = stilled
        """Wraps `rerun`: no handler of this run is running meanwhile."""
        self._field = key if isinstance(key, str) and identity == "key" else None
        self.freeze = self._admit_quickly if self._field is not None else self.admit
        """Freezes one item, in the quick way if there is one."""
        self._slice = 1
        """How many items to take from the source at once: few if they are slow or large."""
        self.taken = 0
        """How many items the source has given."""
        self._trouble: Exception | None = None
        self._alike: Callable[[Any, Any], bool] = _never
        """Whether two payloads are the same thing of the source, although they differ."""
        self._hand = InHand()
        self.origin = ItemOrigin()

    def origin_of(self, source: object) -> ItemOrigin:
        """Return where items come from, for their envelopes. A source that is not ours is named by its type: what it
        prints may contain anything."""
        name = repr(source) if isinstance(source, Patient) else type(source).__name__
        return ItemOrigin(source=canonical.storable(name[:REQUEST_HINT_CHARS]), schema=self.schema.shape())

    def reads_ahead(self, source: Iterable[Any]) -> bool:
        """Return whether to look for changed payloads before anything is handled, so that a run that is refused has
        done nothing. Only a source that never waits is read first."""
        at_hand = isinstance(source, Sized) or (isinstance(source, AtHand) and source.at_hand)
        return at_hand and self.changed == "refuse" and self.identity == "key" and self.batch.admitted > 0

    @property
    def compares_first(self) -> bool:
        """Whether the whole source is compared before anything stored is handled: a pending item may come with another
        payload, and must not be paid for with the old one first."""
        return self.changed == "rerun" and self.identity == "key" and self.batch.admitted > 0

    def read(self, source: Iterable[Any], control: Control, ledger: Ledger, wake: Callable[[], None],
             begin: Callable[[], bool] | None = None) -> None:  # fmt: skip
        """Read the source to its end, or until the run stops. Nothing is lost either way: it is read again by key.
        `begin` is called once the first `limits.READ_AHEAD` items are compared, or all items; if it returns that it was
        interrupted, the source does not count as read."""
        natural = getattr(source, "natural_key", None)
        self._alike = source.alike if isinstance(source, Comparing) else _never
        self.origin = self.origin_of(source)
        items = self._opened(source, control)
        at_hand = isinstance(source, Sized)  # a sequence in memory never waits
        size, self._slice = (INGEST_FIRST_GROUP, TAKEN) if at_hand else (1, 1)
        try:
            ahead = self._look_ahead(items, size, natural, control) if begin is not None else deque()
            while not control.stopping:
                group, ended = ahead.popleft() if ahead else self._group(items, size, natural, control)
                control.wait_for_turn()
                if control.reason and not ended:
                    return
                admitted = self._admit_group(group, ledger, ended=ended)
                for some, before in (*self._hand.settle_later, (group, admitted)):
                    self.settle_changed(some, before)
                control.ingested = ended and begin is None  # else items may be sent back before this returns
                wake()
                if begin is not None and not ahead:
                    seen_all, begin = begin(), None
                    if not seen_all and self._trouble is None:
                        return
                if self._trouble is not None and not ahead:
                    raise self._trouble
                if ended:
                    ledger.ingested = True
                    return
                most = CROWDED_GROUP if control.crowded else INGEST_GROUP
                size = min(most, max(INGEST_FIRST_GROUP, size * 4))
        finally:
            _close(items)

    def _admit_group(self, group: list[NewItem], ledger: Ledger, *, ended: bool) -> Admitted:
        with ledger.writing():
            admitted = self.store.add_items(self.batch.id, group, kind=self.kind, ended=ended, actor=self.owner,
                                            origin=self.origin)  # fmt: skip
            ledger.admit(admitted)
        return admitted

    def admit_early(self, ledger: Ledger) -> bool:
        """Admit the items that the source has given while it keeps the calling thread waiting for more; called on the
        thread of the worker when it is idle. Return whether there were any. An error is left to the calling thread,
        which tries again with the rest."""
        hand = self._hand
        with hand.lock:
            some = hand.left_waiting()
            if not some:
                return False
            try:
                admitted = self._admit_group(some, ledger, ended=False)
            except HoldfastError:
                hand.since = math.inf
                return False
            hand.early += len(some)
            hand.settle_later.append((some, admitted))
            return True

    def _look_ahead(
        self, items: Iterator[Any], size: int, natural: Callable[[Any], Any] | None, control: Control
    ) -> deque[tuple[list[NewItem], bool]]:
        """Read the first groups and refuse changed items before anything is admitted."""
        ahead: deque[tuple[list[NewItem], bool]] = deque()
        weight, ended = 0, False
        while not (ended or control.stopping or self._trouble) and self.taken < READ_AHEAD and weight < INGEST_BYTES:
            group, ended = self._group(items, size, natural, control)
            ahead.append((group, ended))
            known = self.store.known(self.batch.id, group)
            changed = [(index, n) for index, (n, is_same) in known.items() if not is_same]
            self._refuse_changed(group, [(index, n) for index, n in changed if self.differs(n, group[index])])
            weight += sum(len(item.payload) for item in group)
            size = max(INGEST_FIRST_GROUP, size * 4)
        return ahead

    def _opened(self, source: Iterable[Any], control: Control) -> Iterator[Any]:
        """Yield the items, one after the other. A built-in source that is unavailable is waited for."""
        if not isinstance(source, Patient):  # for example a list, which need not be copied
            return iter(source)
        return source.patiently(Outage(self.patience, lambda: control.stopping, Notice(repr(source))))

    def groups(self, source: Iterable[Any], size: int) -> Iterator[list[NewItem]]:
        """Yield the items of a source as they would be admitted, to compare them: so many at a time, fewer if they are
        large."""
        natural = getattr(source, "natural_key", None)
        self._alike = source.alike if isinstance(source, Comparing) else _never
        group, weight = list[NewItem](), 0
        for raw in source:
            item = self.freeze(raw, natural)
            group.append(item)
            weight += len(item.payload)
            if len(group) == size or weight >= INGEST_BYTES:
                yield group
                group, weight = [], 0
        if group:
            yield group

    def _group(
        self, items: Iterator[Any], size: int, natural: Callable[[Any], Any] | None, control: Control
    ) -> tuple[list[NewItem], bool]:
        """Return up to so many items, fewer if the source is slow: given items do not wait long."""
        group = self._hand.begin()
        weight = 0
        began = time.monotonic()
        while len(group) < size and weight < INGEST_BYTES and not control.stopping:
            taking = time.monotonic()
            some = self._take(items, min(size - len(group), self._slice), natural, control)
            control.give_way(time.monotonic() - taking)
            if not some:
                return self._hand.rest(), self._trouble is None
            heavy = sum([len(item.payload) for item in some])
            weight += heavy
            self._slice = max(1, min(TAKEN, self._slice * 4, INGEST_BYTES * len(some) // (4 * heavy + 1)))
            if time.monotonic() - began > GROUP_SECONDS:
                self._slice = 1
                break
        return self._hand.rest(), False

    def _take(
        self, items: Iterator[Any], count: int, natural: Callable[[Any], Any] | None, control: Control
    ) -> list[NewItem]:
        """Return the next items of the source, each frozen before the next is requested: a source may use one dict for
        all. Items given before an error are kept, and the error is raised later. They are added to the current group
        one by one, and returned."""
        group, before = self._hand.group, len(self._hand.group)
        self._hand.since = time.monotonic()
        control.reading = True
        try:
            group.extend(map(self.freeze, islice(items, count), repeat(natural)))
        except Exception as error:  # noqa: BLE001 - any error of a source is raised once these items are stored
            given = self.taken + len(group) - before
            error.add_note(
                f"holdfast: the source of batch {self.batch.name!r} raised this after {given:,} "
                "items; those are stored: correct the source, then run again"
            )
            self._trouble = error
        control.reading = False
        self._hand.since = math.inf
        self.taken += len(group) - before
        return group[before:]

    def _admit_quickly(self, raw: Any, natural: Callable[[Any], Any] | None) -> NewItem:
        """Return an item in the quick way, for a plain dict with its key in a field; everything else, and every error,
        goes through `admit`."""
        key = raw.get(self._field) if type(raw) is dict else None
        if type(key) is str or type(key) is int:
            try:
                payload = self.schema.freeze(raw)
                return ingest.admit(key, payload, self._raw(raw, payload))
            except Invalid:
                pass
        return self.admit(raw, natural)

    def admit(self, raw: Any, natural: Callable[[Any], Any] | None) -> NewItem:
        """Return one item: a frozen payload with a key, or a dead letter that says what is wrong."""
        if isinstance(raw, Malformed):
            return ingest.refuse(None, raw_bytes(raw.raw), "invalid", raw.reason)
        try:
            payload = self.schema.freeze(raw)
        except Invalid as error:
            return ingest.refuse(self._key_of_invalid(raw, natural), raw_bytes(raw), "invalid", str(error))
        try:
            key = self._key(raw, payload, natural)
            if _changes_by_itself(key):
                why = f"its key is a {type(key).__name__}, which prints differently in every run: use text or a number"
                return ingest.refuse(None, payload, "invalid", why)
            return ingest.admit(key, payload, self._raw(raw, payload))
        except Exception as error:  # noqa: BLE001 - a user's key function may raise anything
            return ingest.refuse(
                None,
                payload,
                "invalid",
                f"its key could not be taken from {self._wanted()}: {type(error).__name__}: {error}",
            )

    def _raw(self, raw: Any, payload: bytes) -> bytes | None:
        """Return the item as it was given, if validation changed it. A model was validated when it was made."""
        if isinstance(raw, BaseModel):
            return None
        try:
            given = _as_given(raw)
        except (TypeError, ValueError, OverflowError, RecursionError):
            given = raw_bytes(raw)
        return None if given == payload else given

    def _key(self, raw: Any, payload: bytes, natural: Callable[[Any], Any] | None) -> Any:
        if self.identity == "new":
            return str(uuid_utils.uuid7())
        if self.identity == "content":
            return self._content(payload)
        if self.key is None:
            return self._default_key(raw, payload, natural)
        if callable(self.key):
            return self.key(raw)
        if isinstance(raw, dict):
            return raw[self.key]
        return getattr(raw, self.key)

    def _default_key(self, raw: Any, payload: bytes, natural: Callable[[Any], Any] | None) -> Key:
        """Return the key if the user passed none: the source's own, the value itself if it is short, else its
        content."""
        found = natural(raw) if natural is not None else None
        if found is not None:
            return found  # type: ignore[no-any-return]
        if isinstance(raw, str | int) and not isinstance(raw, bool) and len(str(raw)) <= 128 and raw != "":
            return raw
        return self._content(payload)

    def _content(self, payload: bytes) -> str:
        return canonical.digest(self.schema.content(payload)).hex()

    def _key_of_invalid(self, raw: Any, natural: Callable[[Any], Any] | None) -> Any:
        """Return the key of an invalid item, if possible; else None, and its content identifies it."""
        try:
            key = self._key(raw, raw_bytes(raw), natural)
        except Exception:  # noqa: BLE001 - a user's key function, on a value that is known to be invalid
            return None
        return key if isinstance(key, str | int) and not isinstance(key, bool) else None

    def _wanted(self) -> str:
        return f"the field {self.key!r}" if isinstance(self.key, str) else "the key function"

    def settle_changed(self, group: list[NewItem], admitted: Admitted) -> None:
        """Handle known keys that came with another payload, as the user chose."""
        self._renew_moved(group, admitted)
        if not admitted.changed or self.changed == "keep":
            return
        changed = [(index, n) for index, n in admitted.changed if self.differs(n, group[index])]
        if self.changed == "refuse":
            self._refuse_changed(group, changed)
        elif changed:
            with self.stilled():
                for index, n in changed:
                    self.rerun(n, group[index], self.origin)

    def _refuse_changed(self, group: list[NewItem], changed: list[tuple[int, ItemNo]]) -> None:
        if not changed:
            return
        index, n = changed[0]
        stored = self.store.items(self.batch.id, lo=n, hi=n + 1)[0]
        more = f" ({len(changed)} items of this group have changed)" if len(changed) > 1 else ""
        raise PayloadChanged(
            f"item {group[index].key!r} of batch {self.batch.name!r} came with another payload: "
            f"{ingest.difference(stored.payload, group[index].payload)}{more}. "
            'Pass changed="rerun" to handle it again, changed="keep" to keep the stored item, or use another batch name'
        )

    def _renew_moved(self, group: list[NewItem], admitted: Admitted) -> None:
        """Update items that are in another place now and were not begun, so that they are read from there."""
        if self._alike is _never or not any(self._is_moved(n, group[index]) for index, n in admitted.changed):
            return
        with self.stilled():
            for index, n in admitted.changed:
                if self._is_moved(n, group[index]):
                    self.rerun(n, group[index], self.origin)

    def _is_moved(self, n: ItemNo, item: NewItem) -> bool:
        stored = self.store.items(self.batch.id, lo=n, hi=n + 1)[0]
        before, after = canonical.decode(stored.payload), canonical.decode(item.payload)
        fresh = stored.place.state is State.PENDING and stored.place.stage == 0
        return fresh and self._alike(before, after) and _place_of(before) != _place_of(after)

    def differs(self, n: ItemNo, item: NewItem) -> bool:
        """Return whether two payloads differ in meaning; the order of a dict or a set does not count."""
        stored = self.store.items(self.batch.id, lo=n, hi=n + 1)[0]
        try:
            if self.schema.decode(stored.payload) == self.schema.decode(item.payload):
                return False
        except Invalid:
            return True
        return not self._alike(canonical.decode(stored.payload), canonical.decode(item.payload))


def none_given(admitted: int) -> str:
    """Return the warning on a source that had items and has none any more."""
    return (
        f"the source gave no items; {admitted:,} were admitted before, and none was compared: check its path, pattern "
        "or filter"
    )


def _never(_before: Any, _after: Any) -> bool:
    """Return False: payloads that differ are different things, unless their source knows better."""
    return False


def _place_of(payload: Any) -> Any:
    return payload.get("path", payload.get("url"))


def _changes_by_itself(key: Any) -> bool:
    """Return whether the text of a key may differ in the next run: it contains a memory address, or the order of a
    set."""
    if isinstance(key, dict | set | frozenset):
        return True
    return all(getattr(type(key), name) is getattr(object, name) for name in ("__str__", "__repr__"))


def _close(items: Iterator[Any]) -> None:
    close = getattr(items, "close", None)
    if callable(close):
        close()
