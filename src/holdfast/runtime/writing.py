"""Writes commits until it is known what became of each of them."""

from collections.abc import Sequence

from holdfast.core.errors import CommitUnknown
from holdfast.core.limits import SENDS
from holdfast.core.model import Commit
from holdfast.stores.base import Receipt, Store


def write(store: Store, commits: Sequence[Commit]) -> list[Receipt]:
    """Write, and after a lost reply look every commit up before judging.

    What did not land is sent again under its own id: a store takes it once, however late another copy of it arrives.
    So finished work is not done again because a reply was lost.
    """
    receipts: dict[bytes, Receipt] = {}
    left = list(commits)
    for _ in range(SENDS):
        try:
            answers = store.commit(left)
        except CommitUnknown:
            answers = [Receipt(landed=store.landed(each), reason="unknown") for each in left]
        receipts |= {each.id: answer for each, answer in zip(left, answers, strict=True)}
        left = [each for each in left if not receipts[each.id].landed and receipts[each.id].reason == "unknown"]
        if not left:
            break
    return [receipts[each.id] for each in commits]
