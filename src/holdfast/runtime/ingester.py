"""From a source to items: validate, key, freeze, admit in groups. Runs on the thread that called `run()`."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import uuid_utils

from holdfast.core import canonical, ingest
from holdfast.core.errors import PayloadChanged, UsageError
from holdfast.core.limits import INGEST_BYTES, INGEST_FIRST_GROUP, INGEST_GROUP
from holdfast.core.model import Admitted, Batch, ItemNo, Key, NewItem
from holdfast.runtime.control import Control
from holdfast.runtime.ledger import Ledger
from holdfast.runtime.schema import Invalid, Schema, raw_bytes
from holdfast.runtime.sources.base import Malformed
from holdfast.stores.base import Store

Identity = Literal["key", "content", "new"]
Changed = Literal["refuse", "keep", "rerun"]
KeyFrom = str | Callable[[Any], Any] | None

SALTS = 512


class Ingester:
    """Reads a source beside the workers and admits what is new."""

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
        rerun: Callable[[ItemNo, NewItem], None],
    ) -> None:
        self.store = store
        self.batch = batch
        self.schema = schema
        self.key = key
        self.identity = identity
        self.changed = changed
        self.owner = owner
        self.rerun = rerun
        self._field = key if isinstance(key, str) and identity == "key" else None

    def read(self, source: Iterable[Any], control: Control, ledger: Ledger, wake: Callable[[], None]) -> None:
        """Read the source to its end, or until the run stops. Nothing is lost either way: it is read again by key."""
        natural = getattr(source, "natural_key", None)
        items = iter(source)
        size = INGEST_FIRST_GROUP
        try:
            while not control.stopping:
                group, ended = self._group(items, size, natural, control)
                control.wait_for_turn()
                if control.stop_event.is_set() and not ended:
                    return
                admitted = self.store.add_items(self.batch.id, group, ended=ended, actor=self.owner)
                ledger.admit(admitted)
                self._settle_changed(group, admitted)
                wake()
                if ended:
                    ledger.ingested = True
                    return
                size = min(INGEST_GROUP, size * 4)
        finally:
            _close(items)

    def _group(
        self, items: Iterator[Any], size: int, natural: Callable[[Any], Any] | None, control: Control
    ) -> tuple[list[NewItem], bool]:
        group: list[NewItem] = []
        weight = 0
        while len(group) < size and weight < INGEST_BYTES and not control.stopping:
            control.reading = True
            some = list(islice(items, min(size - len(group), SALTS)))
            control.reading = False
            if not some:
                return group, True
            salts = os.urandom(canonical.SALT_BYTES * len(some))
            admit = self._admit_quickly if self._field is not None else self.admit
            admitted = [admit(raw, salts[16 * i : 16 * i + 16], natural) for i, raw in enumerate(some)]
            weight += sum([len(item.payload) for item in admitted])
            group += admitted
        return group, False

    def _admit_quickly(self, raw: Any, salt: bytes, natural: Callable[[Any], Any] | None) -> NewItem:
        """The short way for a plain dict with its key in a field; all else, and all trouble, goes the long way."""
        if type(raw) is dict:
            try:
                return ingest.admit(raw[self._field], self.schema.freeze(raw), salt)
            except (Invalid, KeyError):
                pass
        return self.admit(raw, salt, natural)

    def admit(self, raw: Any, salt: bytes, natural: Callable[[Any], Any] | None) -> NewItem:
        """One item: a frozen payload with a key, or a dead letter that says what is wrong with it."""
        if isinstance(raw, Malformed):
            return ingest.refuse(None, raw_bytes(raw.raw), salt, "invalid", f"{raw.where}: {raw.why}")
        try:
            payload = self.schema.freeze(raw)
        except Invalid as error:
            return ingest.refuse(self._key_of_invalid(raw, natural), raw_bytes(raw), salt, "invalid", str(error))
        try:
            return ingest.admit(self._key(raw, payload, natural), payload, salt)
        except (KeyError, AttributeError, TypeError, ValueError, IndexError) as error:
            return ingest.refuse(
                None,
                payload,
                salt,
                "invalid",
                f"its key could not be had from {self._wanted()}: {type(error).__name__}: {error}",
            )

    def _key(self, raw: Any, payload: bytes, natural: Callable[[Any], Any] | None) -> Any:
        if self.identity == "new":
            return str(uuid_utils.uuid7())
        if self.identity == "content":
            return canonical.digest(b"", payload).hex()
        if self.key is None:
            return self._default_key(raw, payload, natural)
        if callable(self.key):
            return self.key(raw)
        if isinstance(raw, dict):
            return raw[self.key]
        return getattr(raw, self.key)

    def _default_key(self, raw: Any, payload: bytes, natural: Callable[[Any], Any] | None) -> Key:
        """Without a key of the user's: the source's own, the value itself where it is short, else its content."""
        found = natural(raw) if natural is not None else None
        if found is not None:
            return found  # type: ignore[no-any-return]
        if isinstance(raw, str | int) and not isinstance(raw, bool) and len(str(raw)) <= 128 and raw != "":
            return raw
        return canonical.digest(b"", payload).hex()

    def _key_of_invalid(self, raw: Any, natural: Callable[[Any], Any] | None) -> Any:
        """The key of something that is not valid, where it can be had; else None, and its content identifies it."""
        try:
            key = self._key(raw, raw_bytes(raw), natural)
        except Exception:  # noqa: BLE001 - a key function of the user's on a value that is known to be broken
            return None
        return key if isinstance(key, str | int) and not isinstance(key, bool) else None

    def _wanted(self) -> str:
        return f"the field {self.key!r}" if isinstance(self.key, str) else "the key function"

    def _settle_changed(self, group: list[NewItem], admitted: Admitted) -> None:
        if not admitted.changed or self.changed == "keep":
            return
        if self.changed == "rerun":
            for index, n in admitted.changed:
                self.rerun(n, group[index])
            return
        index, n = admitted.changed[0]
        stored = self.store.records(self.batch.id, lo=n, hi=n + 1)[0]
        more = f" ({len(admitted.changed)} items of this group have changed)" if len(admitted.changed) > 1 else ""
        raise PayloadChanged(
            f"item {group[index].key!r} of batch {self.batch.name!r} came with another payload: "
            f"{ingest.difference(stored.payload, group[index].payload)}{more}. "
            'Say changed="rerun" to handle it again, changed="keep" to keep what is stored, or use another batch name'
        )


def check_identity(identity: str, changed: str) -> None:
    """Refuse words we do not know."""
    if identity not in ("key", "content", "new"):
        raise UsageError(f'identity={identity!r}: say "key", "content" or "new"')
    if changed not in ("refuse", "keep", "rerun"):
        raise UsageError(f'changed={changed!r}: say "refuse", "keep" or "rerun"')


def _close(items: Iterator[Any]) -> None:
    close = getattr(items, "close", None)
    if callable(close):
        close()
