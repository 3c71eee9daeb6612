"""The app of the kill tests, and the command, in a process whose disk fails. Both work in the folder `disk`."""

import os
import resource
import sys
from typing import Any

from holdfast.interfaces.cli import app as cli
from tests.faults import app
from tests.iofaults import shim

DISK = "disk"


def main(argv: list[str]) -> int:
    """`--limit BYTES` first: no file may grow larger. `command` then: the arguments of `holdfast`; else of the app."""
    os.chdir(DISK)
    if argv[0] == "--limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(argv[1]), resource.RLIM_INFINITY))
        argv = argv[2:]
    if argv[0] == "command":
        shim.arm()
        sys.path.insert(0, "..")
        return cli.call(argv[1:])
    build = app.build

    def armed(effects: app.Effects) -> Any:
        shim.arm()  # the effects are open by now: they tell the truth whatever the disk does
        return build(effects)

    app.build = armed
    return app.main(argv)
