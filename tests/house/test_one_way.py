"""One mechanism for one job: who else would do it by hand is told where it is done."""

import ast

from tests.house.source import Module, modules
from tests.house.test_imports import called, tell

RAW_BYTES = (
    *("runtime/journal.py", "runtime/operate/audit.py", "runtime/operate/evidence/__init__.py"),
    "runtime/operate/copies.py",
)
"""The journal reader, and who must see entries as they are stored."""


def test_the_journal_is_read_by_its_reader() -> None:
    above = [module for module in modules() if module.layer in ("runtime", "interfaces")]
    wrong = [place for module in above if not module.place.endswith(RAW_BYTES) for place in reads_entries(module)]
    assert not wrong, tell("Read the journal with forward() or backward() of runtime/journal.py.", wrong)


def reads_entries(module: Module) -> list[str]:
    calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    found = [call for call in calls if called(call) in ("each_entry", "newest_entries", "entries", "decode_header")]
    return [f"{module.place}:{call.lineno}: {ast.unparse(call.func)}()" for call in found]


def test_acts_are_written_in_one_place() -> None:
    above = [module for module in modules() if module.layer in ("runtime", "interfaces")]
    wrong = [place for module in above if not module.place.endswith("runtime/acts.py") for place in acts(module)]
    assert not wrong, tell("Write acts with Acts of runtime/acts.py, which groups and counts them.", wrong)


def acts(module: Module) -> list[str]:
    calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    return [f"{module.place}:{call.lineno}: {ast.unparse(call.func)}()" for call in calls if called(call) == "Act"]


WRITES_ITS_OWN = {
    *("core/verify.py", "runtime/operate/cursors.py", "runtime/operate/cursor_audit.py"),
    *("runtime/partitions.py", "runtime/importers.py", "runtime/acts.py"),
    *("runtime/report/why.py", "runtime/scan/scan.py", "core/plain.py"),
}
"""Files with a value whose JSON is not its fields under other names: the list may only shrink."""


def test_values_become_json_by_one_rule() -> None:
    found = {
        module.place.removeprefix("src/holdfast/")
        for module in modules()
        if module.layer in ("core", "stores", "runtime", "interfaces")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "as_dict"
    }
    assert found <= WRITES_ITS_OWN, (
        f"derive from Plain of core/plain.py, and list names in _tells: {found - WRITES_ITS_OWN}"
    )
    assert found == WRITES_ITS_OWN, f"take out of WRITES_ITS_OWN: {WRITES_ITS_OWN - found}"


def test_fault_points_are_reached_through_their_module() -> None:
    """`reach` is another function once something is armed: a name that was imported before would never strike."""
    wrong = [
        f"{module.place}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "holdfast.stores.faults"
        if any(alias.name == "reach" for alias in node.names)
    ]
    assert not wrong, tell("Import the module, and call faults.reach(…).", wrong)
