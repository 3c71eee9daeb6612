"""Sections and texts: how the body of an entry is stored, and how it is read.

A body is split by boundary, one section for each: facts that belong to ingestion, to one stage, to dead letters
(fallback), or to none of them (control: claims, releases, the course of a batch). There is still one entry for each
commit; its header has a commitment to every section.

Words are taken out of the sections: messages, tracebacks, reasons, cursors, metrics. Each record that has words keeps a
commitment to them (`said`), and the words are stored beside the entry in a frame of their item. So the words of one
item can be removed, and the chain still verifies. The register of data says which fields are words.

`encode` does both; `decode` puts everything back together, so readers of the journal see whole bodies.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core import commitments, journal
from holdfast.core.commitments import SALT_BYTES, Draw
from holdfast.core.journal import (
    Acted,
    Attempted,
    Body,
    Carried,
    Checkpointed,
    Claimed,
    Continued,
    Encoded,
    Header,
    Ingested,
    Moved,
    Position,
    RefusalReason,
    Reopened,
    Sealed,
    Snapshot,
    Spend,
    Steered,
    TriedItems,
)
from holdfast.core.model import Entry, State, TextFrame
from holdfast.core.register import text_fields

CONTROL, INGESTION, FALLBACK = -1, -2, -3
"""Boundaries; the others are stages, by their numbers."""
EVERYBODY = -1
"""In place of the number of an item: words of the entry as a whole."""
BURIED = "bury"

replace = msgspec.structs.replace
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode
T = TypeVar("T", bound=msgspec.Struct)
P = TypeVar("P", Moved, Carried)


def _bare_fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    values = {field.name: field for field in msgspec.structs.fields(kind)}
    return {
        name: values[name].default_factory() if values[name].default is msgspec.NODEFAULT else values[name].default
        for name in _TEXTS[kind]
    }


_TEXTS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    kind: text_fields(f"journal.{kind.__name__}")
    for kind in (Attempted, Spend, Position, RefusalReason, Acted, Steered, Sealed, Reopened)
}
_BARE: dict[type[msgspec.Struct], dict[str, Any]] = {kind: _bare_fields(kind) for kind in _TEXTS}
"""The values of the fields for words of a record without words."""


def boundary_name(boundary: int, stages: Sequence[str] = ()) -> str:
    """Return the name of a boundary for people."""
    named = {CONTROL: "control", INGESTION: "ingestion", FALLBACK: "fallback"}.get(boundary)
    if named is not None:
        return named
    return stages[boundary] if boundary < len(stages) else f"stage {boundary}"


# -- writing ----------------------------------------------------------------------------------------------------------


def encode(body: Body, uid: bytes, chain: int, commit_id: bytes, draw: Draw) -> Encoded:
    """Return a body as it is stored: sections with their commitments, and the words in frames of their items."""
    parts = split(body)
    salts = commitments.salts(draw, len(parts))
    sections, frames, texts = [], [], list[TextFrame]()
    for (boundary, part), salt in zip(parts, salts, strict=True):
        content = journal.encode_content(_take_out(part, uid, boundary, draw, texts))
        sections.append((boundary, commitments.section(uid, chain, boundary, commit_id, salt, content)))
        frames.append((boundary, salt + content))
    return Encoded(_pack(frames), sections, tuple(texts))


def split(body: Body) -> list[tuple[int, Body]]:
    """Return the parts of a body, each with its boundary; there is always at least one."""
    if isinstance(body, Checkpointed):
        return _split_commit(body)
    if isinstance(body, Claimed):
        return _split_claim(body)
    if isinstance(body, Acted):
        return _split_act(body)
    return [(INGESTION if isinstance(body, Ingested) else CONTROL, body)]


def _split_commit(body: Checkpointed) -> list[tuple[int, Body]]:
    parts: defaultdict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for group in body.advanced:
        parts[group.stage]["advanced"].append(group)
    for attempt in body.attempts:
        parts[FALLBACK if attempt.outcome == BURIED else attempt.stage]["attempts"].append(attempt)
    for spend in body.spends:
        parts[spend[0]]["spends"].append(spend)
    if body.positions:
        parts[0]["positions"] = body.positions
    for made in body.made_by:
        parts[made[0]]["made_by"].append(made)
    found: list[tuple[int, Body]] = []
    if body.released or body.due or not parts:
        found.append((CONTROL, Checkpointed(released=body.released, due=body.due)))
    return found + [(boundary, replace(Checkpointed(), **parts[boundary])) for boundary in sorted(parts)]


def _split_claim(body: Claimed) -> list[tuple[int, Body]]:
    parts: defaultdict[int, list[Snapshot]] = defaultdict(list)
    for each in body.snapshots:
        parts[each.stage].append(each)
    rest = replace(body, snapshots=[]) if parts else body
    return [(CONTROL, rest), *((stage, TriedItems(snapshots=parts[stage])) for stage in sorted(parts))]


def _split_act(body: Acted) -> list[tuple[int, Body]]:
    parts: defaultdict[int, list[Moved]] = defaultdict(list)
    for moved in body.items:
        is_fallback = State.DEAD in (moved.before, moved.after)
        parts[FALLBACK if is_fallback else moved.stage_before].append(moved)
    rest = replace(body, items=[]) if parts else body
    return [(CONTROL, rest), *((boundary, Acted(items=parts[boundary])) for boundary in sorted(parts))]


def _take_out(part: Body, uid: bytes, boundary: int, draw: Draw, texts: list[TextFrame]) -> Body:
    """Return a part without its words, which are added to `texts`."""

    def take(record: T) -> T:
        fields, bare = _TEXTS[type(record)], _BARE[type(record)]
        words = [getattr(record, name) for name in fields]
        if words == list(bare.values()):
            return record
        packed, salt, n = _pack(words), draw(SALT_BYTES), getattr(record, "n", EVERYBODY)
        texts.append(TextFrame(n, boundary, salt + packed))
        return replace(record, **bare, said=commitments.text(uid, n, boundary, salt, packed))

    return _each_record(part, take)


# -- reading ----------------------------------------------------------------------------------------------------------


def decode(entry: Entry, header: Header | None = None) -> Body:
    """Return the body of a stored entry, with its words as far as they are there. A record whose words were removed
    still has its commitment in `said`."""
    found = header if header is not None else journal.decode_header(entry.head)
    if found.format == 1:
        whole: Body = journal.decode_content(entry.body)
        return whole
    texts = iter(entry.texts)
    return merge([_put_back(part, texts) for _, part in stored_parts(entry)])


def stored_parts(entry: Entry) -> list[tuple[int, Body]]:
    """Return the parts of a body of format 2 as they are stored, without words."""
    return [(boundary, journal.decode_content(frame[SALT_BYTES:])) for boundary, frame in journal.frames_of(entry.body)]


def merge(parts: Sequence[Body]) -> Body:
    """Return the whole body."""
    first, *others = parts
    if not others:
        return first
    if isinstance(first, Checkpointed):
        some = [part for part in parts if isinstance(part, Checkpointed)]
        return Checkpointed(
            advanced=_all(part.advanced for part in some), attempts=_all(part.attempts for part in some),
            spends=_all(part.spends for part in some), positions=_all(part.positions for part in some),
            made_by=_all(part.made_by for part in some), released=first.released, due=first.due,
        )  # fmt: skip
    if isinstance(first, Claimed):
        return replace(first, snapshots=_all(part.snapshots for part in others if isinstance(part, TriedItems)))
    if isinstance(first, Acted):
        return replace(first, items=_all(part.items for part in others if isinstance(part, Acted)))
    raise ValueError(f"a {type(first).__name__} has one section, not {len(parts)}")


def _all(lists: Iterable[list[Any]]) -> list[Any]:
    return [each for some in lists for each in some]


def _put_back(part: Body, texts: Iterator[TextFrame]) -> Body:
    def put(record: T) -> T:
        if not record.said:  # type: ignore[attr-defined]
            return record
        frame = next(texts, None)
        if frame is None or frame.frame is None:
            return record
        words = _unpack(frame.frame[SALT_BYTES:])
        return replace(record, **dict(zip(_TEXTS[type(record)], words, strict=True)), said=b"")

    return _each_record(part, put)


class TextCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The words of an entry: how many are there, how many were removed, and where one differs from its commitment."""

    shown: int = 0
    removed: int = 0
    changed: str = ""


def check_texts(entry: Entry, header: Header) -> TextCheck:
    """Compare the words of an entry with the commitments in its sections."""
    if header.format == 1:
        return TextCheck()
    texts, shown, changed = iter(entry.texts), 0, ""
    wanted = list(_wanted(entry))
    for n, boundary, said in wanted:
        found = next(texts, None)
        if found is None or found.frame is None:
            continue
        shown += 1
        told = commitments.text(header.uid, n, boundary, *commitments.unframe(found.frame))
        if (found.n, found.boundary, told) != (n, boundary, said):
            changed = changed or ("words of the entry" if n == EVERYBODY else f"words of item {n}")
    if next(texts, None) is not None:
        changed = changed or "words that nothing refers to"
    return TextCheck(shown=shown, removed=len(wanted) - shown, changed=changed)


def _wanted(entry: Entry) -> Iterator[tuple[int, int, bytes]]:
    """Yield (item, boundary, commitment) of all words that the sections of an entry commit to, in their order."""
    for boundary, part in stored_parts(entry):
        found: list[Any] = []
        _each_record(part, lambda record, seen=found: seen.append(record) or record)  # type: ignore[misc]
        yield from ((getattr(record, "n", EVERYBODY), boundary, record.said) for record in found if record.said)


# -- records with words -----------------------------------------------------------------------------------------------


def _each_record(part: Body, change: Callable[[Any], Any]) -> Body:
    """Return a part in which every record that may have words was changed, in a fixed order."""
    if isinstance(part, Checkpointed):
        if not (part.attempts or part.spends or part.positions):
            return part
        return replace(
            part, attempts=list(map(change, part.attempts)),
            spends=[(stage, change(spend)) for stage, spend in part.spends],
            positions=list(map(change, part.positions)),
        )  # fmt: skip
    if isinstance(part, Acted):
        act: Acted = change(part)
        if any(moved.position is not None for moved in act.items):
            act = replace(act, items=[_each_position(moved, change) for moved in act.items])
        return act
    if isinstance(part, Continued):
        return replace(part, items=[_each_position(item, change) for item in part.items])
    if isinstance(part, Ingested):
        return replace(part, refusals=list(map(change, part.refusals))) if part.refusals else part
    if isinstance(part, Steered | Sealed | Reopened):
        whole: Body = change(part)
        return whole
    return part


def _each_position(record: P, change: Callable[[Any], Any]) -> P:
    return record if record.position is None else replace(record, position=change(record.position))
