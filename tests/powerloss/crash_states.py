"""What a disk may hold after the power was cut: every legal state, or a fair choice of them.

What was synced is there. Of what was not, each write is there or not, whole or torn at sectors of 512 bytes, and a
sector that was on its way may hold anything. A write that is there may have made the file longer without having brought
its bytes. A truncation, a new name and a deleted name are there or not; names are independent of each other and of
contents. Two writes to one place cannot change order: the page cache holds only the newer one, so dropping it shows the
older. As SQLite does, we assume that a write damages nothing beside the bytes it covers (powersafe overwrite).
"""

import random
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from tests.powerloss.recorder import FILES, Op

SECTOR = 512
SMALL = 8
"""Windows with at most so many writes are enumerated: every subset of them."""

State = tuple[bytes | None, ...]
"""The content of each of FILES, None where there is no such name."""
Choice = str
"""One letter for each sector of a write, or for a truncation: `n`ew, `o`ld, `g`arbage, `z`ero."""


class Inode(msgspec.Struct):
    durable: bytes = b""
    pending: list[Op] = []

    def sync(self) -> None:
        image = bytearray(self.durable)
        for op in self.pending:
            put(image, op, "n" * sectors(op), b"")
        self.durable, self.pending = bytes(image), []


class Window(msgspec.Struct, frozen=True):
    """One moment at which the power may be cut."""

    at: int
    acknowledged: int
    """How many things the store had called durable."""
    names: tuple[tuple[Inode | None, ...], ...]
    """For each of FILES, what its name may stand for; the last is what a running system sees."""

    def pending(self, names: Sequence[Inode | None]) -> list[Op]:
        return [op for inode in names if inode is not None for op in inode.pending]

    @property
    def latest(self) -> tuple[Inode | None, ...]:
        return tuple(each[-1] for each in self.names)


def windows(ops: Sequence[Op]) -> Iterator[Window]:
    """Each moment after which something could no longer be lost, and each at which more was acknowledged.

    Any state of a moment between two of them is also one of the later of the two: what was not done yet was dropped.
    """
    names: dict[str, list[Inode | None]] = {file: [None] for file in FILES}
    names[""] = [Inode()]
    acknowledged = 0
    for at, op in enumerate(ops):
        if op.kind.startswith("sync"):
            yield snapshot(at, acknowledged, names)
        match op.kind:
            case "write" | "truncate":
                inode(names, op.file).pending.append(op)
            case "create":
                names[op.file].append(Inode())
            case "delete":
                names[op.file].append(None)
            case "sync":
                inode(names, op.file).sync()
            case "sync folder":
                names = {file: each[-1:] for file, each in names.items()}
            case "committed":
                acknowledged += 1
                yield snapshot(at, acknowledged, names)
    yield snapshot(len(ops), acknowledged, names)


def inode(names: dict[str, list[Inode | None]], file: str) -> Inode:
    found = names[file][-1]
    assert found is not None
    return found


def snapshot(at: int, acknowledged: int, names: dict[str, list[Inode | None]]) -> Window:
    copies = {id(each): Inode(each.durable, list(each.pending)) for some in names.values() for each in some if each}
    return Window(at, acknowledged, tuple(tuple(copies.get(id(each)) for each in names[file]) for file in FILES))


def systematic(window: Window) -> Iterator[State]:
    """Every beginning, every single write missing or alone, every tear, all names; all subsets where they are few."""
    for names in product(*window.names):
        ops = window.pending(names)
        whole, none = (["n" * sectors(op) for op in ops], ["o" * sectors(op) for op in ops])
        for at, op in enumerate(ops):
            yield build(names, whole[:at] + none[at:])
            yield build(names, [*whole[:at], none[at], *whole[at + 1 :]])
            yield build(names, [*none[:at], whole[at], *none[at + 1 :]])
            for torn in tears(sectors(op)):
                yield build(names, [*whole[:at], torn, *none[at + 1 :]])
                yield build(names, [*whole[:at], torn, *whole[at + 1 :]])
        yield build(names, whole)
        if len(ops) <= SMALL:
            for subset in product("on", repeat=len(ops)):
                yield build(names, [letter * sectors(op) for letter, op in zip(subset, ops, strict=True)])


def tears(count: int) -> Iterator[Choice]:
    for at in range(1, count):
        yield "n" * at + "o" * (count - at)
        yield "o" * at + "n" * (count - at)
        yield "n" * at + "g" + "o" * (count - at - 1)
    yield "g" * count
    yield "z" * count


def drawn(window: Window, rng: random.Random) -> State:
    """One state by chance: mostly whole or mostly torn, much or little of it there."""
    names = [rng.choice(each) if rng.random() < 0.3 else each[-1] for each in window.names]
    there, torn = rng.choice([0.1, 0.5, 0.9, 0.97]), rng.choice([0.0, 0.1, 1.0])
    choices = []
    for op in window.pending(names):
        letter = "n" if rng.random() < there else rng.choice("ooogz")
        count = sectors(op)
        if rng.random() < torn:
            choices.append("".join(letter if rng.random() < 0.8 else rng.choice("nogz") for _ in range(count)))
        else:
            choices.append(letter * count)
    return build(names, choices, rng.randbytes(SECTOR))


def build(names: Sequence[Inode | None], choices: list[Choice], garbage: bytes = b"\xa5" * SECTOR) -> State:
    """The contents of the files when each pending operation came as far as its choice says."""
    left = iter(choices)
    state: list[bytes | None] = []
    for each in names:
        if each is None:
            state.append(None)
            continue
        image = bytearray(each.durable)
        for op in each.pending:
            put(image, op, next(left), garbage)
        state.append(bytes(image))
    return tuple(state)


def sectors(op: Op) -> int:
    if op.kind == "truncate":
        return 1
    return (op.offset + len(op.data) - 1) // SECTOR - op.offset // SECTOR + 1


def put(image: bytearray, op: Op, choice: Choice, garbage: bytes) -> None:
    if op.kind == "truncate":
        if choice == "n":
            del image[op.offset :]
        return
    if choice.count("n") == len(choice):
        lengthen(image, op.offset)
        image[op.offset : op.offset + len(op.data)] = op.data
        return
    at, end = op.offset, op.offset + len(op.data)
    for letter in choice:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        if letter != "o":
            lengthen(image, upto)
        if letter == "n":
            image[at:upto] = op.data[at - op.offset : upto - op.offset]
        elif letter == "g":
            image[at:upto] = garbage[: upto - at]
        elif letter == "z":
            image[at:upto] = bytes(upto - at)
        at = upto


def lengthen(image: bytearray, size: int) -> None:
    if len(image) < size:
        image.extend(bytes(size - len(image)))
