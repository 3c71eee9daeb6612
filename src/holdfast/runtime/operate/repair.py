"""The repair of what a reconciliation found, as far as that needs no guessing, and the commands for the rest.

An item whose output is missing or different goes back to the stage that makes it. Outputs themselves are never touched.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from shlex import quote

from holdfast.core.course import stage_names
from holdfast.core.errors import Refused, UsageError
from holdfast.core.limits import UNDO_SHARE
from holdfast.core.model import Batch, BatchMode
from holdfast.core.states import keeps_outputs
from holdfast.core.verify import REPAIRABLE, Finding, Reconciliation, What, is_too_much
from holdfast.runtime import lookup
from holdfast.runtime.acts import MEANWHILE, Actor, ActResult, Preview, PreviewedItems, grouped
from holdfast.runtime.define.options import count_or_share
from holdfast.runtime.report.lifecycle import check_goes_on, end_in_the_way
from holdfast.runtime.report.reconcile import Findings
from holdfast.runtime.text import command, many
from holdfast.runtime.verify.recheck import Back, back, send_back
from holdfast.stores.base import Store

SHOWN = 20


COLUMNS = {"item": "item", "to_stage": "begins again at", "why": "why"}


def preview_repair(store: Store, batch: Batch, found: Reconciliation, findings: Findings) -> Preview:
    """Return which items would go back, and to which stage. Nothing is changed."""
    check_goes_on(store, batch)
    if found.batch != batch.name:
        raise UsageError(f"this is a reconciliation of {found.batch!r}, not of {batch.name!r}; nothing was changed")
    names, by_stage, only = stage_names(batch), Counter[str](), PreviewedItems()
    first: list[dict[str, str]] = []
    for worst in _by_item(findings):
        assert worst.stage is not None
        assert worst.n is not None
        only.add(worst.n, worst.stage)
        stage = names[worst.stage]
        by_stage[stage] += 1
        if len(first) < SHOWN:
            first.append({"item": str(worst.key), "to_stage": stage, "why": worst.why})
    left = {what.value: count for what, count in found.found.items() if count and what not in REPAIRABLE}
    kinds = ", ".join(f"{count:,} {what}" for what, count in left.items())
    done = sum(chunk.counts.done for chunk in store.chunks(batch.id))
    titles = [f"{many(n, 'item')} would begin again at {stage!r}, in a new epoch:" for stage, n in by_stage.items()]
    return Preview(
        batch=batch.name, keys="batch rewound done by_stage first left_alone deleted", items=by_stage.total(),
        counts={"rewound": by_stage.total(), "done": done}, left_alone=left, first=tuple(first),
        facts={"by_stage": by_stage, "deleted": 0}, columns=tuple(COLUMNS.values()),
        more=by_stage.total() - len(first),
        titles=tuple(titles) or ("There is nothing that a repair could fix.",),
        remark=f"Left alone: {kinds}. Nothing is ever deleted." if kinds else "",
        warning=end_in_the_way(store, batch), question=f"Send {many(by_stage.total(), 'item')} of {batch.name} back",
        perform=lambda by, _: repair(store, batch, findings, by, only),
    )  # fmt: skip


def check_share(wanted: Preview, share: float) -> None:
    """Refuse to undo much unless the operator allows it: the disk may be missing, or the folder the wrong one."""
    if is_too_much(wanted.items, wanted["done"], share):
        percent = 100 * wanted.items / max(1, wanted["done"])
        most = f"{share:.0%}" if isinstance(share, float) else f"{share:,}"
        raise Refused(
            f"{many(wanted.items, 'item')} of batch {wanted.batch!r} would go back, {percent:.0f}% of the "
            f"{wanted['done']:,} that are done, and at most {most} is allowed: check that the disk is mounted and that "
            "this is the folder that the batch ran in. If so, pass --undo 100%; nothing was changed"
        )


def repair(store: Store, batch: Batch, findings: Findings, by: Actor, only: PreviewedItems | None = None) -> ActResult:
    """Send back every item whose output is missing or different, each guarded by the state it was found in. After a
    preview, only the items it showed go back: the disk may have been unmounted since."""
    check_goes_on(store, batch)
    stages, changed, moved_on = len(stage_names(batch)), 0, 0
    for group in grouped(each for each in _by_item(findings) if only is None or only.has(each.n or 0, each.stage)):
        items = [each for finding in group if (each := _back(store, batch, finding, stages)) is not None]
        landed = send_back(store, batch, items, by).changed
        changed += landed
        moved_on += len(group) - landed
    left = ((MEANWHILE, moved_on),) if moved_on else ()
    warning = end_in_the_way(store, batch) if changed else ""
    return ActResult(kind="rewound", batch=batch.name, changed=changed, left_alone=left, warning=warning)


def _back(store: Store, batch: Batch, finding: Finding, stages: int) -> Back | None:
    """Return the change of the item; None if it has moved since it was inspected."""
    assert finding.n is not None
    assert finding.stage is not None
    item = lookup.item_of(store, batch, finding.n)
    if item is None or not keeps_outputs(item.place) or item.place.stage <= finding.stage:
        return None
    return back(item.key, item.n, item.place, finding.stage, stages, reason=finding.why)


def _by_item(findings: Findings) -> Iterator[Finding]:
    """Yield, for each item, the finding at its earliest stage: every output from there on is made again."""
    mine = (each for each in findings() if each.what in REPAIRABLE and each.n is not None)
    for _, group in groupby(mine, key=lambda finding: finding.n):
        yield min(group, key=lambda finding: finding.stage if finding.stage is not None else 0)


# -- commands ---------------------------------------------------------------------------------------------------------

OF_NUMBER = frozenset({What.NEVER_CREATED, What.UNEXPECTED})


def remedy_commands(found: Reconciliation, batch: Batch, *, source: str | None = None) -> list[str]:
    """Return the commands that deal with what was found, each once."""
    kinds = {what for what, count in found.found.items() if count}
    audit = [command("audit verify", batch.name)] if What.MISCOUNTED in kinds else []
    changes = list(dict.fromkeys(_changes(found, batch, kinds, source)))
    if batch.course is BatchMode.CANCELLED:
        return audit
    if batch.sealed_at is not None and changes:
        return [*audit, command("reopen", batch.name, options="--reason …"), *changes]
    if found.recorded.pending and "holdfast run …" not in changes:
        changes.append(f"{command('status', batch.name)}, then holdfast run …")
    return [*audit, *changes]


def _changes(found: Reconciliation, batch: Batch, kinds: set[What], source: str | None) -> Iterator[str]:
    if kinds & REPAIRABLE:
        yield _repair_command(found, batch, source)
    if What.NEVER_CREATED in kinds and any(map(_is_named, found.findings)):
        yield "holdfast run …"
    if kinds & OF_NUMBER and any(map(_is_number, found.findings)):
        yield command("expect", batch.name, found.expected.admitted, "--reason …")
    if found.nothing:
        yield "holdfast run … --allow-empty"
    elif not found.expected.read and not found.recorded.pending:
        yield "holdfast run …" if found.expected.scanned else f"holdfast run …, or {command('close', batch.name)}"


def _repair_command(found: Reconciliation, batch: Batch, source: str | None) -> str:
    """Return the repair command that finds the same as this reconciliation, and is not refused."""
    options = ["--repair", *(["--full"] if found.observed.how == "full" else [])]
    options += [] if source is None else ["--source", quote(source)]
    options += ["--undo 100%"] if is_much(found) else []
    return command("reconcile", batch.name, options=" ".join(options))


def is_much(found: Reconciliation) -> bool:
    """Return whether a repair would send back more than is allowed without --undo."""
    count = sum(found.found.get(what, 0) for what in REPAIRABLE)
    listed = [finding for finding in found.findings if finding.what in REPAIRABLE]
    items = len({finding.n for finding in listed}) if len(listed) == count else count
    return is_too_much(items, found.recorded.done, count_or_share(UNDO_SHARE, "undo"))


def _is_named(finding: Finding) -> bool:
    return finding.what is What.NEVER_CREATED and finding.key is not None


def _is_number(finding: Finding) -> bool:
    return finding.what in OF_NUMBER and finding.key is None
