"""Any key is safe in a file name, and no two keys share a file."""

import os
import string
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import Permanent, UsageError
from holdfast.runtime.sinks import Files, names
from tests.sinks.making import output, place

HOSTILE = [
    *("..", ".", "...", "../x", "../../etc/passwd", "/etc/passwd", "a/b", "a%2Fb", "a\\b", "\0", "a\0b", "\n", "\x7f"),
    *("%", "%25", "%~", "%2e", ".hidden", ".holdfast", "CON", "nul", "trailing.", "trailing ", " ", "-", "-rf", "~"),
    *("x" * 300, "x" * 299 + "y", "x" * 200, "x" * 201, "%" * 100, "/" * 512, "é" * 100, "é" * 101, "\U0001f40b" * 60),
    *("é", "e\u0301", "\u212b", "\u00c5", "\u202egpj.exe", "\u2028", "\ud800", "\udcff", "A", "a", "7", "07", "-7"),
    *("tmp-1-0123456789abcdef", "a.b.1.0.00.1." + "0" * 32 + ".json", "{key}", "{", "$HOME", "`id`", ""),
]  # fmt: skip
KEYS = st.one_of(st.text(alphabet=st.characters(), max_size=400), st.sampled_from(HOSTILE), st.integers())


def test_plain_keys_are_names_as_they_are() -> None:
    for key in ("page-0041", "a.b_c", "Ishmael", "2026-11-15T10.30"):
        assert names.safe_name(key) == key


def test_a_hostile_key_is_one_name_within_its_folder() -> None:
    for key in HOSTILE:
        path = names.parse("out/{key}").path(place(key))
        folder, name = os.path.split(path)
        assert folder == "out"
        assert name not in ("", ".", "..")
        assert not name.startswith(".")
        assert not set(name) & {"/", "\\", "\0", "\n", "\x7f"}
        assert len(name.encode("utf-8")) <= names.VALUE_BYTES


def test_hostile_keys_never_share_a_name() -> None:
    made = {names.safe_name(key) for key in HOSTILE}
    assert len(made) == len(set(HOSTILE))
    assert len({unicodedata.normalize("NFC", name) for name in made}) == len(made), "nor where spelling does not count"


@pytest.mark.parametrize("limit", [48, 200])
@given(one=KEYS, other=KEYS)
@example("%2F", "/")
@example("é", "e\u0301")
@settings(max_examples=300, deadline=None)
def test_two_keys_never_share_a_name(limit: int, one: str | int, other: str | int) -> None:
    first, second = names.safe_name(str(one), limit), names.safe_name(str(other), limit)
    assert (first == second) == (str(one) == str(other))
    assert len(first.encode("utf-8")) <= limit


@given(key=KEYS)
@settings(max_examples=60, deadline=None)
def test_any_key_can_be_written_and_read_back(key: str | int, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("any")
    sink = Files(root / "out" / "{key}.txt")
    made = sink.stage(place(key), b'"x"')
    sink.publish([made], sync=False)
    assert sink.read(made) == b'"x"'
    (found,) = [path for path in (root / "out").iterdir() if path.name != ".holdfast"]
    assert found == Path(made.final)


def test_a_number_and_its_text_are_one_key_and_one_file() -> None:
    template = names.parse("out/page_{key:04d}.json")
    assert template.path(place(7)) == template.path(place("7")) == "out/page_0007.json"
    assert template.path(place(-7)) == "out/page_-007.json"
    assert template.path(place(12345)) == "out/page_12345.json"


@pytest.mark.parametrize("key", ["007", "+7", " 7", "7 ", "1_000", "-0", "\u0667", "seven", "7.0", "", "9" * 5000])
def test_a_key_that_is_no_number_fails_before_it_costs_anything(key: str, here: Path) -> None:
    sink = Files("out/page_{key:04d}.json")
    for verb in (lambda: sink.find(place(key)), lambda: sink.stage(place(key), output(1))):
        with pytest.raises(Permanent, match="item 1 of batch 'moby-dick'") as caught:
            verb()
        assert caught.value.code == "sink_name"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("", "pass a path"),
        (b"out/{key}", "pass a path"),
        (None, "pass a path"),
        ("out/page.json", "without {key}"),
        ("out/{{key}}.json", "without {key}"),
        ("out/{batch}.json", "without {key}"),
        ("out/{id}.json", "{id} is not a field"),
        ("out/{}.json", "{} is not a field"),
        ("out/{0}.json", "{0} is not a field"),
        ("out/{key.__class__}.json", "is not a field"),
        ("out/{key[0]}.json", "is not a field"),
        ("out/{key", "braces"),
        ("out/key}", "braces"),
        ("out/{key:.3}.json", "only format"),
        ("out/{key:>9}.json", "only format"),
        ("out/{key:c}.json", "only format"),
        ("out/{key:4d}.json", "only format"),
        ("out/{key:09999d}.json", "only format"),
        ("out/{key!r}.json", "only format"),
        ("out/{batch:04d}/{key}.json", "only format"),
        ("out/{key}/", "it ends in a folder"),
        ("out/{key}/..", "it ends in a folder"),
        ("out/.{key}", "begins with a dot"),
        ("out/.{batch}/{key}", "begins with a dot"),
        ("out/{key}\0", "NUL"),
        ("out/" + "x" * 200 + "{key}.json", "too long"),
    ],
)
def test_a_template_that_cannot_work_is_refused_when_it_is_written(template: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        Files(template)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("template", "folder", "path"),
    [
        ("{key}.json", ".", "7.json"),
        ("out/{key}.json", "out/", "out/7.json"),
        ("./out/{stage}/{key}.json", "./out/", "./out/correct/7.json"),
        ("out/{batch}/{key}/page.txt", "out/", "out/moby-dick/7/page.txt"),
        ("/{key}", "/", "/7"),
        ("../out/{key:03d}", "../out/", "../out/007"),
        ("a{{b}}/{key}{{.json", "a{b}/", "a{b}/7{.json"),
        ("a/b.{key}", "a/", "a/b.7"),
        ("{key}_{key:02d}", ".", "7_07"),
    ],
)
def test_fields_stand_anywhere_and_outputs_are_staged_before_the_first(template: str, folder: str, path: str) -> None:
    parsed = names.parse(template)
    assert (parsed.folder, parsed.path(place(7))) == (folder, path)


def test_batch_and_stage_are_as_safe_as_keys() -> None:
    parsed = names.parse("out/{batch}/{stage}_{key}")
    assert parsed.path(place(1, batch="../..", stage="a/b")) == "out/%2E.%2F../a%2Fb_1"


def test_names_stay_short_however_many_fields_share_one() -> None:
    parsed = names.parse("out/{batch}{stage}{key}.json")
    path = parsed.path(place("k" * 500, batch="b" * 200, stage="s" * 200))
    assert len(path.removeprefix("out/")) <= names.NAME_BYTES


def test_a_staged_name_says_everything_and_stays_short() -> None:
    longest = place(1, batch="x" * 200, stage="\u4e2d" * 200, n=1 << 34, epoch=1 << 31, fence=1 << 62)
    for where in (place(), longest, place(batch="a.b", stage="../x", n=0), place(batch="", stage="")):
        name = names.staged_name(where, bytes(range(32)), is_text=True)
        said = names.parse_staged(name)
        assert said is not None
        assert (said.origin, said.fence, said.is_text) == (names.origin(where), where.fence, True)
        assert len(name) < 200
        assert set(name) <= set(string.ascii_letters + string.digits + "-_.~")


def test_every_part_of_the_provenance_but_the_fence_is_in_the_origin() -> None:
    changes = [{"batch": "a"}, {"batch": "a.b"}, {"stage": "x"}, {"n": 2}, {"epoch": 1}, {"input_digest": bytes(32)}]
    origins = {names.origin(place(**change)) for change in [{}, *changes]}
    assert len(origins) == 1 + len(changes)
    assert names.origin(place(fence=9)) == names.origin(place())
