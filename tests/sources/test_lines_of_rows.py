"""Rows are told with the lines where they are in the file."""

from pathlib import Path

import pytest

from holdfast.runtime.sources.text_rows import Csv, JsonLines


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_row_of_a_csv_file_may_be_several_lines(tmp_path: Path, end: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(end.join(["a,b", "1,x", '2,"two', 'lines"', "3,y", "", "4,last"]).encode())
    (page,) = Csv(path).read(None, None)
    befores = [None, *(page.after(count) for count in (1, 2, 3))]
    told = [Csv(path).lines_after(before, 1) for before in befores]
    assert told[:3] == [f"line 2 of {path}", f"lines 3 to 4 of {path}", f"line 5 of {path}"]
    assert told[3].endswith(f"7 of {path}")
    assert Csv(path).lines_after(None, 3) == f"lines 2 to 5 of {path}"
    assert Csv(path).lines_after(None, 9) == f"in {path}"


def test_a_line_of_a_json_file_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("1\n2\n3")
    (page,) = JsonLines(path).read(None, None)
    assert JsonLines(path).lines_after(page.after(1), 1) == f"line 2 of {path}"
    assert JsonLines(path).lines_after(page.after(1), 2) == f"lines 2 to 3 of {path}"
