"""Who is dead: only a process of this boot and namespace of which nothing is left."""

import os
import subprocess
import sys

import pytest

from holdfast.stores import owners

NAME = "import sys; from holdfast.stores import owners; print(owners.new_owner(), flush=True); sys.stdin.read()"


def named(owner: str, **parts: str) -> str:
    """The same owner with other parts."""
    order = ["host", "boot", "namespace", "pid", "start", "nonce"]
    return "/".join(parts.get(name, part) for name, part in zip(order, owner.split("/"), strict=True))


def test_this_process_lives_and_its_names_are_never_the_same() -> None:
    first, second = owners.new_owner(), owners.new_owner()
    assert first != second
    assert not owners.is_dead(first)
    assert owners.short(first).endswith(f"pid {os.getpid()}")


@pytest.mark.promise("C3", "C4")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_dead_once_it_ended_and_also_while_nobody_has_waited_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    owner = child.stdout.readline().strip()
    assert not owners.is_dead(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owners.is_dead(owner)
    child.communicate()
    assert owners.is_dead(owner)


@pytest.mark.promise("C4")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_another_process_with_the_same_pid_is_not_the_owner() -> None:
    assert owners.is_dead(named(owners.new_owner(), start="1"))


@pytest.mark.promise("C4")
@pytest.mark.parametrize(
    "parts", [{"boot": "other"}, {"namespace": "4026"}, {"boot": "?"}, {"start": "?"}, {"pid": "x"}, {"namespace": "?"}]
)
def test_of_a_process_elsewhere_nothing_is_known(parts: dict[str, str]) -> None:
    assert not owners.is_dead(named(owners.new_owner(), **{"pid": "999999999", **parts}))


@pytest.mark.parametrize("owner", ["", "ann", "a/b/c", "/" * 5, "/" * 9, "worker-1 of the night shift"])
def test_a_name_of_another_kind_is_never_dead(owner: str) -> None:
    assert not owners.is_dead(owner)
    assert isinstance(owners.short(owner), str)
