"""Outputs given by hand: the check that one fits its stage, and the file that it is written to.

If the code is available, the stage knows its schema. Without it, the batch has the annotation of the stage as its name
and a digest, from which an annotation of built-in types can be restored. A scan is compared with its recorded results.
"""

import ast
import datetime as dt
import decimal
import typing
import uuid
from itertools import chain
from typing import Any

from holdfast.core import canonical
from holdfast.core.course import kind_of, stage_names
from holdfast.core.errors import Permanent, Refused, StoreError, UsageError
from holdfast.core.model import Batch, Kind, Output, StoredItem
from holdfast.runtime.define.schema import Invalid, Schema
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.sinks.base import Evidence, Provenance
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.verify import ownership
from holdfast.runtime.verify.inspector import sinks_of
from holdfast.stores.base import Store, each_checkpoint, each_output

NOTHING = "nothing was changed"
EITHER_WAY = ("$int", "$float", "$dict")
"""Marks of values that may be written with or without the mark."""
KNOWN: dict[str, Any] = {
    **{kind.__name__: kind for kind in (int, str, float, bool, bytes, list, dict, tuple, set, frozenset)},
    **{kind.__name__: kind for kind in (dt.date, dt.datetime, dt.time, dt.timedelta)},
    "Decimal": decimal.Decimal, "UUID": uuid.UUID, "Any": Any, "NoneType": None, "None": None,
    "Optional": typing.Optional, "Union": typing.Union, "Literal": typing.Literal,
}  # fmt: skip
"""The types in an annotation that can be restored from its name."""


def fitted(store: Store, batch: Batch, data: bytes, stage: Stage | None = None) -> bytes:
    """Return an output as it is stored, for the last stage of a batch. Raises UsageError if it does not fit."""
    if kind_of(batch, store.chunks(batch.id)) is Kind.PARTITIONS:
        return _of_scan(store, batch, data, stage)
    schema = remembered(batch) if stage is None else stage.output
    if schema is None:
        return data
    try:
        schema.decode(data)
    except Invalid as error:
        name = canonical.decode(batch.definition)["stages"][-1]["name"]
        raise UsageError(
            f"the output does not fit stage {name!r} of batch {batch.name!r}, which returns {schema.describe()}: "
            f"{error}; {NOTHING}"
        ) from None
    return data


def remembered(batch: Batch) -> Schema | None:
    """Return the output schema of the last stage as of the last run; None if it cannot be restored."""
    last = canonical.decode(batch.definition)["stages"][-1]
    if not isinstance(last, dict) or not last.get("shapes"):
        return None
    try:
        schema = Schema(_annotation(ast.parse(str(last.get("output")), mode="eval").body), "the output")
    except (SyntaxError, LookupError, TypeError, UsageError):
        return None
    return schema if schema.shape() == last["shapes"][1] else None


def _annotation(node: ast.expr) -> Any:
    """Return the type that an annotation of known types means; raise LookupError for any other."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple):
        return tuple(map(_annotation, node.elts))
    if isinstance(node, ast.Subscript):
        return _annotation(node.value)[_annotation(node.slice)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return typing.Union[_annotation(node.left), _annotation(node.right)]  # noqa: UP007 - of values, not of names
    return KNOWN[node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")]


def _of_scan(store: Store, batch: Batch, data: bytes, stage: Stage | None) -> bytes:
    try:
        value = canonical.decode_typed(data, "the output")
        if stage is not None and stage.accumulated is not None:
            made = stage.accumulated(value)
            return data if made is None else made
    except UsageError as error:
        raise UsageError(f"{error}; {NOTHING}") from None
    if misfit := _misfit(canonical.decode(data), _recorded(store, batch), "the output"):
        raise UsageError(f"{misfit}; {NOTHING}")
    return data


def _recorded(store: Store, batch: Batch) -> Any:
    """Return the stored result of any partition so far, or None if there is none."""
    results = (output.data for output in each_output(store, batch.id, stage=0))
    kept = (at.acc for at in each_checkpoint(store, batch.id))
    found = next((data for data in chain(results, kept) if data not in (None, b"null")), None)
    return None if found is None else canonical.decode(found)


def _misfit(given: Any, known: Any, where: str) -> str:
    """Return where a value lacks the type mark that the known value has; empty if both agree."""
    if not isinstance(known, dict) or given is None:
        return ""
    mark = next(iter(known), "")
    if not mark.startswith("$"):
        pairs = [(given[name], known[name], name) for name in known if isinstance(given, dict) and name in given]
        return next(filter(None, (_misfit(mine, theirs, f"{where}[{name!r}]") for mine, theirs, name in pairs)), "")
    if mark in EITHER_WAY or (isinstance(given, dict) and next(iter(given), "").startswith("$")):
        return ""
    better = canonical.encode({mark: given if isinstance(given, list | dict) else str(given)}).decode()
    return f"{where} is a {mark[1:]} in the recorded results: write {better.replace(':', ': ', 1)}"


class OutputByHand:
    """The file of one output, if the last stage has a sink."""

    def __init__(self, store: Store, batch: Batch) -> None:
        names = stage_names(batch)
        self._batch, self._index, self._stage = batch, len(names) - 1, names[-1]
        self._sink: Files | None = sinks_of(batch).get(self._index)
        self._staged: Evidence | None = None
        if self._sink is not None:
            ownership.introduce(store, batch, {self._index: self._sink})
            self._me = ownership.holder_of(store, batch)

    def stage(self, item: StoredItem, data: bytes) -> Output | None:
        """Write the output of an item durably under its staged name; return None if the store keeps outputs. Raises
        Refused if it could not be published."""
        if self._sink is None:
            return None
        place = Provenance(pipeline=self._batch.pipeline, batch=self._batch.name, stage=self._stage, n=item.n,
                           epoch=item.place.epoch, fence=0, input_digest=b"", key=item.key)  # fmt: skip
        self._check_folder(self._sink)
        try:
            self._sink.check_name(place)
            self._staged = self._sink.stage(place, data)
            self._sink.sync_folders([self._staged])
        except Permanent as error:
            raise Refused(f"{error}; nothing was changed") from error
        except OSError as error:
            raise StoreError(f"the output could not be written: {error}; nothing was changed") from error
        return Output(item.n, self._index, item.place.epoch, None, self._staged.encode())

    def publish(self, changed: int) -> str:
        """Give the output its final name, if it was recorded; return why that failed, or an empty string."""
        if self._sink is None or self._staged is None or not changed:
            return ""
        try:
            self._sink.publish([self._staged])
        except OSError as error:
            return (
                f"the output is safe in {self._staged.staged}, but could not be renamed to its final name: {error}; "
                "fix that, then run the batch again"
            )
        return ""

    def _check_folder(self, sink: Files) -> None:
        """Refuse a folder that no run has written to: this may be the wrong working directory, or a disk that is not
        mounted."""
        names = sink.names_of(self._stage, self._batch.name)
        if not names.folder.is_dir():
            raise Refused(
                f"stage {self._stage!r} keeps its outputs in {sink.template.text}, but no run has written to "
                f"{sink.folder}: change to the folder in which the runs were started; nothing was changed"
            )
        if (holder := names.taken_from(self._me)) is not None:
            raise Refused(
                f"the files {sink.template.text} of stage {self._stage!r} now belong to batch {holder.batch!r} of "
                f"pipeline {holder.pipeline!r}, and the output would replace one of them; nothing was changed"
            )
