"""Credentials that are refused in the middle of a run: it says so at once, and the next run with good ones goes on."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.interfaces.cli.app import call
from tests.buckets import proxy as proxies
from tests.buckets import servers
from tests.buckets.proxy import Cut, Proxy
from tests.buckets.test_servers import LEAST

pytestmark = pytest.mark.slow
APP = """
import holdfast as hf
lines = hf.Pipeline("lines", store={store!r}, source=[f"line {{n}}" for n in range(30)])

@lines.stage
def length(line: str) -> int:
    return len(line)
"""
LATER = 14
"""The number of a conditional write in the middle of the run: the store is made, and items are admitted."""
SOMEBODY_HAS_TO_ACT = 2
_numbers = itertools.count(1)


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    name = f"refused-{next(_numbers)}"
    servers.make_s3_bucket(moto, name)
    with proxies.before(moto) as (proxy, through):
        for variable, value in {
            "AWS_ENDPOINT": through, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_SESSION_TOKEN": "test", "AWS_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(variable, value)
        yield proxy, f"s3://{name}/state"


@pytest.fixture
def azure(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """With credentials for one container and the least that is documented."""
    name = f"refused-{next(_numbers)}"
    servers.make_container(azurite, name)
    with proxies.before(azurite) as (proxy, through):
        for variable, value in {
            "AZURE_STORAGE_ENDPOINT": through, "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": servers.ACCOUNT,
            "AZURE_STORAGE_SAS_TOKEN": servers.sas_options(azurite, name, LEAST)["sas_key"],
        }.items():  # fmt: skip
            monkeypatch.setenv(variable, value)
        yield proxy, f"az://{name}/state"


@pytest.mark.promise("C19", "P8")
@pytest.mark.parametrize(("kind", "cut"), [("s3", Cut.EXPIRED), ("azure", Cut.REFUSED)])
def test_credentials_that_end_in_mid_run_are_told_at_once_and_the_next_run_goes_on(
    kind: str, cut: Cut, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    proxy: Proxy
    proxy, url = request.getfixturevalue(kind)
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP.format(store=url))

    def end(number: int) -> Cut:
        proxy.shut = cut if number >= LATER else Cut.NONE
        return proxy.shut

    proxy.begin(end)
    assert call(["run", "app.py"]) == SOMEBODY_HAS_TO_ACT
    said = " ".join(capsys.readouterr().err.split())
    assert "these credentials do not allow that, or have expired" in said
    assert "docs/buckets.md lists what they need; run again with valid ones" in said
    assert "sig=" not in said
    proxy.begin(lambda _: Cut.NONE)
    assert call(["run", "app.py"]) == 0
    assert "All 30 items are accounted for" in " ".join(capsys.readouterr().out.split())
    assert call(["audit", "verify", "lines", "--store", url]) == 0
