"""The kind of file system a path is on: SQLite's WAL needs shared memory, which network file systems do not provide."""

import errno
import os
from pathlib import Path

from holdfast.core.errors import UsageError

NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "9p", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.blobfuse2", "fuse.mount-s3",
})  # fmt: skip

NO_PLACE = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
    errno.ENOTSUP, errno.ENXIO, errno.ENODEV,
})  # fmt: skip
"""Errors for a path at which a file can never exist."""


def kind_of(path: Path) -> str:
    """Return the type of the file system that holds the path (or its nearest existing parent); `unknown` if
    unreadable."""
    target = behind(path).absolute()
    while not is_there(target) and target != target.parent:
        target = target.parent
    target = target.resolve()
    best, kind = -1, "unknown"
    for mount_point, fs_type in _mounts():
        if (target == mount_point or mount_point in target.parents) and len(mount_point.parts) >= best:
            best, kind = len(mount_point.parts), fs_type
    return kind


def behind(path: Path) -> Path:
    """Return the file that a link leads to, whether it exists or not; any other path unchanged. SQLite keeps its
    companion files beside the file, not beside a link to it."""
    is_link = os.path.islink(path)  # noqa: PTH114 - Path.is_symlink raises if a folder may not be entered
    return Path(os.path.realpath(path)) if is_link else path


def network_of(path: Path) -> str:
    """Return the type of the file system that holds the path if it is a network file system; else an empty text."""
    kind = kind_of(path)
    return kind if is_network(kind) else ""


def is_network(kind: str) -> bool:
    """Return whether files there may be shared with other hosts."""
    return kind in NETWORK


def is_there(path: Path) -> bool:
    """Return whether this user can see something at the path."""
    try:
        return path.exists()
    except OSError:  # a folder that may not be entered, a name that is too long
        return False


def check_is_no_folder(path: Path) -> None:
    """Refuse a folder as the file of a store."""
    if is_there(path) and path.is_dir():
        raise UsageError(f"{path} is a directory: name the file of the store, for example {path / 'state.db'}")


def _mounts() -> list[tuple[Path, str]]:
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split(" ")[4].replace("\\040", " ")
        found.append((Path(point), right.split(" ")[0]))
    return found
