"""Which file system a path is on: the deepest mount point decides."""

from pathlib import Path

import pytest

from holdfast.core.errors import Refused
from holdfast.stores import filesystem
from holdfast.stores.filesystem import is_network, is_there, kind_of
from holdfast.stores.sqlite import SqliteStore

MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / {root}/share rw shared:2 master:3 - nfs4 server:/export rw
23 22 0:6 / {root}/share/local rw - xfs /dev/sdb1 rw
24 21 0:7 / {root}/with\040blank rw - fuse.sshfs me@host:/ rw
25 21 0:8 / {root}/over rw - ext4 /dev/sdc1 rw
26 25 0:9 / {root}/over rw - cifs //server/share rw
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with mounts in it."""
    for name in ("share/local", "shared", "with blank", "over"):
        (tmp_path / name).mkdir(parents=True)
    text = MOUNTS.strip().replace("{root}", str(tmp_path))
    told = [line for line in text.splitlines() if line]

    def read_text(path: Path, *_how: str) -> str:
        assert str(path) == "/proc/self/mountinfo"
        return "\n".join(told)

    monkeypatch.setattr(Path, "read_text", read_text)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("", "ext4"),
        ("share", "nfs4"),
        ("share/deep/er/state.db", "nfs4"),
        ("share/local/state.db", "xfs"),
        ("shared/state.db", "ext4"),
        ("with blank/state.db", "fuse.sshfs"),
        ("over/state.db", "cifs"),
        ("not/there/yet.db", "ext4"),
    ],
)
def test_the_deepest_mount_and_the_last_one_there_decides(place: str, kind: str, root: Path) -> None:
    assert kind_of(root / place) == kind


def test_a_link_is_followed(root: Path) -> None:
    (root / "link").symlink_to(root / "share")
    assert kind_of(root / "link" / "state.db") == "nfs4"


def test_a_store_on_a_network_file_system_is_refused_and_not_made(root: Path) -> None:
    with pytest.raises(Refused, match=r"network file system \(nfs4\).*local disk"):
        SqliteStore(root / "share" / "new" / "state.db")
    assert not (root / "share" / "new").exists()


def test_where_nothing_can_be_read_the_kind_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreadable(*_args: object) -> str:
        raise PermissionError("no /proc here")

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert kind_of(tmp_path) == "unknown"
    assert not is_network("unknown")


def test_network_file_systems_are_known_by_name() -> None:
    assert all(map(is_network, ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "lustre"]))
    assert not any(map(is_network, ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", ""]))


def test_what_may_not_be_seen_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert is_there(tmp_path)
    assert not is_there(tmp_path / "nothing")

    def forbidden(_path: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "exists", forbidden)
    assert not is_there(tmp_path)


def test_this_machine_has_a_kind_too(tmp_path: Path) -> None:
    assert filesystem.kind_of(tmp_path)
