"""What a machine lacks is a failure where CI is set, and said loudly elsewhere."""

import pytest

from tests.house.source import ROOT
from tests.needed import missing


def test_a_missing_server_fails_where_ci_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="there is no server: CI is set"):
        missing("there is no server")


def test_a_missing_server_is_told_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NOT TESTED: there is no server"):
        missing("there is no server")


def test_ci_is_set_in_ci() -> None:
    assert "CI=1 exec make test" in (ROOT / ".ci" / "run").read_text()
