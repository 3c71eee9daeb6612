"""Rooms have an order, and imports point up it only: whoever reads from the top has read what the next room uses.

Imports inside functions and for types count, too.
"""

import re
from importlib import import_module

from tests.house.graph import imports, name_of, room_of
from tests.house.source import ROOT, modules

ORDER = (
    "core",
    *("stores.faults", "stores.owners", "stores.filesystem", "stores.seen_keys", "stores.base"),
    *("stores.memory", "stores.sqlite", "stores.buckets", "stores.bucket", "stores.open"),
    *("runtime.text", "runtime.lookup", "runtime.journal", "runtime.acts"),
    *(
        "runtime.event_loop",
        "runtime.sinks",
        "runtime.sources",
        "runtime.partitions",
        "runtime.events",
        "runtime.envelopes",
    ),
    *("runtime.define", "runtime.verify", "runtime.report", "runtime.operate", "runtime.engine"),
    *("runtime.plan", "runtime.recover", "runtime.message", "runtime.pipeline"),
    *("runtime.scan", "runtime.functions", "runtime.importers", "runtime.handles"),
    *("", "interfaces", "__main__", "testing"),
)
"""The rooms in reading order. A new room is put behind all that it imports; one that is gone leaves the list."""


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {room_of(name_of(module)) for module in modules() if module.path.name != "__init__.py"} | {""}
    assert set(ORDER) == rooms, f"give these a place in ORDER, or take them out: {sorted(set(ORDER) ^ rooms)}"


def test_imports_follow_the_order_of_the_rooms() -> None:
    wrong: list[str] = []
    for module in modules():
        room = room_of(name_of(module))
        for line, target in imports(module):
            other = room_of(target)
            if other in ORDER and room in ORDER and ORDER.index(room) < ORDER.index(other):
                wrong.append(f"{module.place}:{line}: {room} imports {other}, which comes after it")
    assert not wrong, "\n  ".join(["Move down what both need, or hand it in:", *wrong])


def test_commands_do_what_a_python_caller_can_do_and_nothing_else() -> None:
    """They call handles and public names; what they import for annotations alone does nothing."""
    wrong = [
        f"{module.place}:{line}: {target}"
        for module in modules()
        if room_of(name_of(module)) == "interfaces"
        for line, target in imports(module, but_types=True)
        if not target.startswith(("interfaces", "runtime.handles", "runtime.text", "core.plain")) and target
    ]
    assert not wrong, "\n  ".join(["Give these a place in a handle, or call a public name:", *wrong])


def test_no_module_is_part_of_a_cycle() -> None:
    needs = {name_of(module): {to for _, to in imports(module, only_at_once=True)} for module in modules()}
    needs = {name: {to for to in found if not name.startswith(f"{to}.")} for name, found in needs.items()}
    while ready := [name for name, found in needs.items() if not found & needs.keys()]:
        needs = {name: found for name, found in needs.items() if name not in ready}
    assert not needs, f"these modules import each other in a circle, or one that does: {sorted(needs)}"


def test_the_architecture_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    words = set(page[page.index("\n## Every room\n") :].split())
    missing = [
        room for room in ORDER if room and not {f"{room.rpartition('.')[2]}{end}" for end in ("/", ".py")} & words
    ]
    assert not missing, f'say in docs/architecture.md, under "Every room", what these are for: {missing}'


def test_the_architecture_names_only_what_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = (ROOT / name for name in ("src", "tests", "docs", "bench", "examples", "tools"))
    files = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.glob("**/*.*")}
    named = re.findall(r"`([\w./]+\.(?:py|sql|c|toml))`", page)
    gone = {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)}
    functions = re.findall(r"`core\.(\w+)\.(\w+)", page)
    gone |= {f"core.{module}.{name}" for module, name in functions if not hasattr(_core(module), name)}
    assert not gone, f"docs/architecture.md speaks of what is gone: {sorted(gone)}"


def _core(module: str) -> object:
    try:
        return import_module(f"holdfast.core.{module}")
    except ModuleNotFoundError:
        return None
