"""An output that a person gives is a file where the stage keeps its outputs in files."""

import json
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.model import State
from holdfast.core.verify import What
from holdfast.runtime.acts import Actor, ActResult
from holdfast.runtime.operate import operations

from .support import run

BY = Actor(name="ann", reason="seen on paper")


def with_letter(template: str = "out/{key}.json", *, batch: str = "monday") -> hf.Pipeline:
    p = hf.Pipeline("p", store="state.db")

    @p.stage(sink=hf.Files(template))
    def write(n: int) -> dict[str, int]:
        if n == 2:
            raise hf.Permanent("unreadable")
        return {"n": n}

    run(p, [1, 2, 3], batch=batch, tolerate=1)
    return p


def resolve(p: hf.Pipeline, output: bytes, batch: str = "monday") -> ActResult:
    (found,) = p.store.batches(batch)
    return operations.resolve(p.store, found, BY, "2", output=output)


def is_dead(p: hf.Pipeline, batch: str = "monday") -> bool:
    (found,) = p.store.batches(batch)
    return len(p.store.items(found.id, state=State.DEAD)) == 1


@pytest.mark.parametrize("template", ["out/{key}.json", "out/{batch}/{key}.json"])
def test_a_resolved_output_is_a_file_like_any_other(template: str) -> None:
    p = with_letter(template)
    assert resolve(p, b'{"n":  22}').changed == 1
    path = Path(template.format(key=2, batch="monday"))
    assert json.loads(path.read_text()) == {"n": 22}
    for full in (False, True):
        assert p.reconcile("monday", full=full).is_explained
    assert [result.output for result in p.results("monday")] == [{"n": 1}, {"n": 22}, {"n": 3}]
    report = run(p, [1, 2, 3], batch="monday", verify="full")
    assert (report.exit_code, report.this_run.rewound) == (0, 0)
    path.unlink()
    assert p.reconcile("monday").found[What.MISSING] == 1


def test_elsewhere_it_is_refused_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = with_letter()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(hf.Refused, match="change to the folder in which the runs were started"):
        resolve(p, b'{"n": 22}')
    assert not list(Path().iterdir())
    assert is_dead(p)


def test_a_file_of_another_batch_is_not_replaced_by_hand() -> None:
    p = with_letter("out/{batch}-{key}.json", batch="a")
    other = hf.Pipeline("q", store="other.db")

    @other.stage(sink=hf.Files("out/a-{key}.json"))
    def write(n: int) -> str:
        return "of another"

    run(other, [2], batch="b")
    with pytest.raises(hf.Refused, match=r"batch 'b'.*nothing was changed"):
        resolve(p, b'{"n": 22}', "a")
    assert Path("out/a-2.json").read_text() == '"of another"\n'
    assert is_dead(p, "a")


def test_what_stands_in_the_way_of_its_name_is_told() -> None:
    p = with_letter()
    Path("out/2.json").mkdir()
    Path("out/2.json/inside").touch()
    result = resolve(p, b'{"n": 22}')
    assert result.changed == 1
    assert "safe in" in result.warning
    for path in sorted(Path("out/2.json").rglob("*")):
        path.unlink()
    Path("out/2.json").rmdir()
    assert run(p, [1, 2, 3], batch="monday").exit_code == 0
    assert json.loads(Path("out/2.json").read_text()) == {"n": 22}
