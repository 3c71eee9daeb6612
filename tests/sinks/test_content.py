"""The bytes of an output come back from its file exactly."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.core import canonical
from holdfast.runtime.sinks.disk import decode_content, encode_content

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


@given(value=JSON, is_json=st.booleans())
@settings(max_examples=300, deadline=None)
def test_every_output_comes_back(value: Any, is_json: bool) -> None:
    output = canonical.encode(value)
    data, is_text = encode_content(output, is_json=is_json)
    assert decode_content(data, is_text=is_text) == output


@pytest.mark.parametrize(
    ("output", "is_json", "data"),
    [
        (b'{"a":1}', True, b'{"a":1}\n'),
        (b'{"a":1}', False, b'{"a":1}\n'),
        (b'"a \\"b\\"\\n"', True, b'"a \\"b\\"\\n"\n'),
        (b'"a \\"b\\"\\n"', False, b'a "b"\n'),
        (b'""', False, b""),
        (b"null", False, b"null\n"),
        (b'"{\\"a\\":1}\\n"', False, b'{"a":1}\n'),
    ],
)
def test_json_stays_json_and_text_is_plain_where_the_name_allows(output: bytes, is_json: bool, data: bytes) -> None:
    made, is_text = encode_content(output, is_json=is_json)
    assert made == data
    assert decode_content(made, is_text=is_text) == output


@pytest.mark.parametrize("output", [b'"\\u0041"', b'"\\/"', b'"\\ud800"', b'"\xff"', b' "x"', b'"open'])
def test_a_spelling_that_would_not_come_back_as_text_stays_json(output: bytes) -> None:
    data, is_text = encode_content(output, is_json=False)
    assert (data, is_text) == (output + b"\n", False)
    assert decode_content(data, is_text=is_text) == output


@pytest.mark.parametrize("kind", ["plain", "context", "async"])
@pytest.mark.promise("E5")
def test_a_large_output_reaches_the_next_stage_through_its_file(here: Path, kind: str) -> None:
    book = hf.Pipeline("book", store=here / "state.db")

    @book.stage(sink=hf.Files(str(here / "out/{key}.json")))
    def read(number: int) -> str:
        return str(number) * 100_000

    if kind == "plain":

        @book.stage
        def count(text: str) -> int:
            return len(text)

    elif kind == "context":

        @book.stage(name="count")
        def count_with_context(text: str, ctx: hf.Context) -> int:
            return len(text)

    else:

        @book.stage(name="count")
        async def count_later(text: str) -> int:
            return len(text)

    assert book.run(range(1, 12), progress=False).is_complete
    assert {result.key: result.output for result in book.results()} == {
        number: 100_000 * len(str(number)) for number in range(1, 12)
    }
