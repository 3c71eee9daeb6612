"""Real databases for tests: private servers, reached by a socket only, started once and stopped whatever happens.

An address in the environment is taken as it is (HOLDFAST_TEST_POSTGRESQL, HOLDFAST_TEST_MARIADB). Else the binaries of
the machine are used, or those of a package (tools/machine.py); as root, the server runs as nobody in a folder of its
own.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.needed import folder_of, missing

NO_POSTGRESQL = "there is no PostgreSQL: install postgresql, or name one in HOLDFAST_TEST_POSTGRESQL"
NO_MARIADB = "there is no MariaDB: install mariadb-server, or name one in HOLDFAST_TEST_MARIADB"
START_SECONDS = 60.0
PR_SET_PDEATHSIG = 1


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL."""
    if named := os.environ.get("HOLDFAST_TEST_POSTGRESQL"):
        yield named
        return
    folder = folder_of("initdb", NO_POSTGRESQL)
    with _place() as place:
        data = place / "data"
        _call([folder / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "--locale=C"])
        server = [folder / "postgres", "-D", data, "-k", place, "-h", "", "-F", "-c", "max_prepared_transactions=5"]
        url = f"postgresql+psycopg://postgres@/postgres?host={place}"
        with _running(server, url, signal.SIGINT):
            yield url


class Restartable:
    """A PostgreSQL of its own that can be killed as if its machine had died, and started again."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.url = f"postgresql+psycopg://postgres:s3cr3t@/postgres?host={place}"
        self._folder, self._place = folder, place
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Processes of the one that was killed may be there for a moment, and are waited for."""
        command = [self._folder / "postgres", "-D", self._place / "data", "-k", self._place, "-h", "", "-F"]
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._server = subprocess.Popen([str(each) for each in command], stdout=subprocess.DEVNULL, cwd="/",
                                            stderr=subprocess.DEVNULL, preexec_fn=_end_with_us, **_user())  # type: ignore[call-overload]  # noqa: PLW1509 # fmt: skip
            while self._server.poll() is None:
                if _answers(self.url):
                    return
                time.sleep(0.05)
        pytest.fail("the server did not start")

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None


@contextmanager
def restartable() -> Iterator[Restartable]:
    folder = folder_of("initdb", NO_POSTGRESQL)
    with _place() as place:
        _call([folder / "initdb", "-D", place / "data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync",
               "--locale=C"])  # fmt: skip
        server = Restartable(folder, place)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def standby(primary: str) -> Iterator[str]:
    """The address of a hot standby of a PostgreSQL that was started here: it replays what that one commits."""
    folder = folder_of("initdb", NO_POSTGRESQL)
    host = sa.make_url(primary).query.get("host")
    if not (folder / "pg_basebackup").exists() or not isinstance(host, str) or not Path(host).is_dir():
        missing("there is no PostgreSQL to make a standby of: install postgresql from the distribution")
    with _place() as place:
        data = place / "data"
        _call([folder / "pg_basebackup", "-h", host, "-U", "postgres", "-D", data, "-R", "-X", "stream", "-c", "fast",
               "--no-sync"])  # fmt: skip
        url = f"postgresql+psycopg://postgres@/postgres?host={place}"
        server = [folder / "postgres", "-D", data, "-k", place, "-h", "", "-F", "-c", "max_prepared_transactions=5",
                  "-c", "wal_receiver_timeout=2s"]  # fmt: skip
        with _running(server, url, signal.SIGINT):
            yield url


@contextmanager
def mariadb() -> Iterator[str]:
    """The address of a MariaDB, whose own clock on the wall is not that of its sessions."""
    if named := os.environ.get("HOLDFAST_TEST_MARIADB"):
        yield named
        return
    folder, tool = folder_of("mariadbd", NO_MARIADB), shutil.which("mariadb-install-db")
    if tool is None:
        missing(NO_MARIADB)
    with _place() as place:
        data, socket = place / "data", place / "db.sock"
        _call([tool, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal"])
        server = [folder / "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking",
                  f"--pid-file={place / 'pid'}", "--innodb-flush-log-at-trx-commit=0", f"--tmpdir={place}",
                  "--default-time-zone=+00:00"]  # fmt: skip
        url = f"mysql+pymysql://root@localhost/test?unix_socket={socket}"
        with _running(server, url, signal.SIGTERM, lambda: _make_database(url), TZ="Pacific/Auckland"):
            yield url


def _make_database(url: str) -> None:
    engine = sa.create_engine(sa.make_url(url).set(database=""))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE DATABASE IF NOT EXISTS test")
    finally:
        engine.dispose()


@contextmanager
def _place() -> Iterator[Path]:
    """A folder that only the server's user may enter, with a short name: sockets have little room for theirs."""
    place = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(place, nobody.pw_uid, nobody.pw_gid)
        place.chmod(0o700)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _user() -> dict[str, object]:
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if os.geteuid() == 0 else {}


def _call(command: Sequence[object]) -> None:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, cwd="/", check=False,
                          **_user())  # type: ignore[call-overload]  # fmt: skip
    assert done.returncode == 0, f"{command[0]} failed: {done.stdout[-500:]}{done.stderr[-2000:]}"


@contextmanager
def _running(
    command: Sequence[object], url: str, end: signal.Signals, prepare: Callable[[], None] = lambda: None, **env: str
) -> Iterator[None]:
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([str(each) for each in command], stdout=log, stderr=log, cwd="/",
                                  env={**os.environ, **env}, preexec_fn=_end_with_us, **_user())  # type: ignore[call-overload]  # noqa: PLW1509 # fmt: skip
        try:
            _await(server, url, prepare, log)
            yield
        finally:
            server.send_signal(end)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _end_with_us() -> None:
    """In the child, on Linux: when the tests are killed, and come to no finally, their servers end as well.
    SIGQUIT is what both understand."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _answers(url: str) -> bool:
    engine = sa.create_engine(url)
    try:
        with engine.connect():
            return True
    except sa.exc.SQLAlchemyError:
        return False
    finally:
        engine.dispose()


def _await(server: "subprocess.Popen[bytes]", url: str, prepare: Callable[[], None], log: object) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            prepare()
            engine = sa.create_engine(url)
            try:
                with engine.connect():
                    return
            finally:
                engine.dispose()
        except sa.exc.SQLAlchemyError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                log.seek(0)  # type: ignore[attr-defined]
                pytest.fail(f"the server did not start: {error}; {log.read()[-2000:]!r}")  # type: ignore[attr-defined]
            time.sleep(0.05)
