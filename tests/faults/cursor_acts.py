"""A process in which a person acts on the cursors of a scan, made to be killed."""

from collections.abc import Callable

from holdfast.runtime.operate import clones
from holdfast.runtime.operate import cursors as acts
from holdfast.stores.base import Store
from holdfast.stores.open import open_store
from tests.operations.scanned import BY, Totals

ROWS = range(1000)
PARTS = 5


def main(argv: list[str]) -> int:
    """Do one of ACTS on the store at a URL, or `begin` the scan."""
    what, url = argv
    begin(url) if what == "begin" else ACTS[what](open_store(url))
    return 0


def begin(url: str) -> None:
    """A scan whose fourth partition died after 100 of its 200 rows."""
    totals = Totals(open_store(url), ROWS, partitions=PARTS)
    totals.bad = {700}
    totals.run()
    totals.store.close()


def _clone(store: Store) -> None:
    (found,) = store.batches("totals")
    clones.make(store, clones.clone(store, found, "copy"), BY)


def _reset(store: Store) -> None:
    (found,) = store.batches("totals")
    acts.carry_out(store, found, acts.to_beginning(store, found), BY)


def _retry(store: Store) -> None:
    (found,) = store.batches("totals")
    acts.retry(store, found, acts.plan_retry(store, found), BY, named=False)


def _settle(store: Store) -> None:
    (found,) = store.batches("totals")
    acts.settle(store, found, BY, "3", b"7")


ACTS: dict[str, Callable[[Store], None]] = {"clone": _clone, "reset": _reset, "retry": _retry, "settle": _settle}
