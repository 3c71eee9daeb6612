"""Real servers for buckets, started and stopped by the tests: moto for S3, Azurite for Azure Blob Storage.

Azurite is a package of npm: it is installed once, below `build/`. Where a server cannot be had, tests skip loudly; in
CI they fail.
"""

import base64
import fcntl
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote

import boto3
import pytest

from tests.needed import folder_of, missing
from tests.needed import program as program_named

ROOT = Path(__file__).parents[2]
AZURITE = "azurite@3.35.0"
HOME = ROOT / "build" / "azurite"
ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"a key for tests, which opens nothing but a server of their own..").decode()
PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], address: str, **facts: Any) -> Iterator[str]:
    """A server, once it answers; ended with the block."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **facts) as process:
        try:
            wait_for(address, process)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(address: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=1).close()
        except URLError as error:
            if hasattr(error, "code"):
                return
            time.sleep(0.05)
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"{address} does not answer")


# -- S3 -------------------------------------------------------------------------------------------------------------


@contextmanager
def moto() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(Path(__file__).with_name("moto_in_turn.py")), "-H", "127.0.0.1", "-p", str(port)]
    with running(command, f"http://127.0.0.1:{port}") as address:
        yield address


def make_s3_bucket(address: str, name: str) -> None:
    asked = urllib.request.Request(f"{address}/{name}", method="PUT", headers={"Authorization": S3_HEADER})
    urllib.request.urlopen(asked).close()


S3_HEADER = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def s3_options(address: str) -> dict[str, Any]:
    return {
        "access_key_id": "test", "secret_access_key": "test", "region": "us-east-1", "endpoint": address,
        "client_options": {"allow_http": True},
    }  # fmt: skip


def s3_user(address: str, name: str, allowed: dict[str, list[str]]) -> dict[str, Any]:
    """Credentials of a user who may do some things to some resources, and nothing else once `enforce` was called."""
    iam = boto3.client("iam", endpoint_url=address, region_name="us-east-1", aws_access_key_id="root",
                       aws_secret_access_key="root")  # fmt: skip
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    rules = [{"Effect": "Allow", "Action": acts, "Resource": f"arn:aws:s3:::{what}"} for what, acts in allowed.items()]
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rule for rule in rules if rule["Action"]]})
    iam.put_user_policy(UserName=name, PolicyName="all-it-may-do", PolicyDocument=policy)
    own = {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}
    return {**s3_options(address), **own}


def enforce(address: str) -> None:
    """From now on moto asks whether a user may do what it asks for."""
    headers = {"Content-Type": "text/plain"}
    asked = urllib.request.Request(f"{address}/moto-api/reset-auth", data=b"0", method="POST", headers=headers)
    urllib.request.urlopen(asked).close()


# -- Azure ----------------------------------------------------------------------------------------------------------


def install_azurite() -> Path:
    program = HOME / "node_modules" / ".bin" / "azurite-blob"
    if program.exists():
        return program
    npm = program_named("npm", "Azurite needs Node: install npm")
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:  # of several test processes, one installs and the others wait for it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _install(npm)
    return program


def _install(npm: list[str]) -> None:
    """Beside its place first: an install that was cut short is never taken for a whole one."""
    made = HOME / "new"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    command = [*npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", str(made), AZURITE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=_with_node())
    except subprocess.TimeoutExpired:
        missing(f"Azurite could not be installed within 300 s (npm install {AZURITE}): is there a network?")
    if done.returncode or not (made / "node_modules" / ".bin" / "azurite-blob").exists():
        said = " ".join(done.stderr.split())[:300]
        missing(f"Azurite could not be installed (npm install {AZURITE}): is there a network? npm says: {said}")
    shutil.rmtree(HOME / "node_modules", ignore_errors=True)
    (made / "node_modules").rename(HOME / "node_modules")


def _with_node() -> dict[str, str]:
    """The environment with the folder of Node in front: scripts of npm look for it on the PATH."""
    node = folder_of("node", "Azurite needs Node: install nodejs")
    return {**os.environ, "PATH": f"{node}{os.pathsep}{os.environ.get('PATH', '')}"}


@contextmanager
def azurite() -> Iterator[str]:
    """A server that keeps what it has in memory."""
    program, port = install_azurite(), free_port()
    command = [str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence",
               "--skipApiVersionCheck", "--silent", "--disableTelemetry"]  # fmt: skip
    env = {**_with_node(), "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with running(command, f"http://127.0.0.1:{port}", env=env, cwd=HOME) as address:
        yield f"{address}/{ACCOUNT}"


def make_container(address: str, name: str) -> None:
    """By hand, with a signed request: obstore has no word for it."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
    signed = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}",
                        f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])  # fmt: skip
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{sign(signed)}"
    asked = urllib.request.Request(f"{address}/{name}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(asked).close()


def azure_options(address: str) -> dict[str, Any]:
    return {
        "account_name": ACCOUNT, "account_key": KEY, "endpoint": address, "client_options": {"allow_http": True},
    }  # fmt: skip


def sas_options(address: str, container: str, permissions: str) -> dict[str, Any]:
    """Credentials for one container and some permissions only."""
    start = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = "2021-08-06"
    canonical = f"/blob/{ACCOUNT}/{container}"
    to_sign = [permissions, start, end, canonical, "", "", "", version, "c", "", "", "", "", "", "", ""]
    signature = sign("\n".join(to_sign))
    query = {"sp": permissions, "st": start, "se": end, "sv": version, "sr": "c", "sig": signature}
    text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    return {
        "account_name": ACCOUNT, "sas_key": text, "endpoint": address, "client_options": {"allow_http": True},
    }  # fmt: skip


def sign(text: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
