"""Loads the pipeline or scan at `app.py:book` or `package.module:book`."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from holdfast import Follow, HoldfastError, Pipeline, Scan, UsageError
from holdfast.runtime.handles.program import load_file

Runnable = Pipeline | Scan | Follow


def load(target: str) -> Pipeline:
    """Return the pipeline at `file.py:name` or `module:name`, or of the scan there; without a name, the only one."""
    found = load_runnable(target)
    return found if isinstance(found, Pipeline) else found.pipeline


def load_scan(target: str) -> Scan | Follow:
    """Return the scan or follower at a target."""
    found = load_runnable(target)
    if isinstance(found, Pipeline):
        raise UsageError(f"{target} is the pipeline {found.name!r}: a scan is needed")
    return found


def load_runnable(target: str) -> Runnable:
    """Return the pipeline, scan or follower at a target."""
    where, colon, name = target.rpartition(":")
    if not colon:
        where, name = target, ""
    module = _module(where)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Runnable)}
    if name:
        return _named(where, module, name, found)
    distinct = {id(value) for value in found.values()}
    if len(distinct) == 1:
        return next(iter(found.values()))
    raise UsageError(f"{where} has {_listed(found)}: name one, for example {where}:{next(iter(found), 'book')}")


def _named(where: str, module: ModuleType, name: str, found: dict[str, Runnable]) -> Runnable:
    value: object = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise UsageError(f"{where} has no {name!r}; it has {_listed(found)}")
        value = getattr(value, part)
    if not isinstance(value, Runnable):
        raise UsageError(
            f"{where}:{name} is a {type(value).__name__}, not a pipeline or a scan; it has {_listed(found)}"
        )
    return value


def _module(where: str) -> ModuleType:
    path = Path(where).expanduser()
    is_file = where.endswith(".py") or path.is_file() or os.sep in where
    if is_file and not path.is_file():
        raise UsageError(f"there is no file {where}: name a Python file or a module, for example app.py:book")
    if not is_file and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return load_file(path) if is_file else importlib.import_module(where)
    except HoldfastError:
        raise
    except ModuleNotFoundError as error:
        if not is_file and error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {where!r}: name a Python file or a module, for example app.py:book"
            ) from None
        raise UsageError(_broken(where, error)) from error
    except (Exception, SystemExit) as error:
        raise UsageError(_broken(where, error)) from error


def _broken(where: str, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = frames[-1] if frames else None
    place = f" ({at.filename}, line {at.lineno})" if at is not None and not at.filename.startswith("<frozen") else ""
    return f"{where} could not be imported: {type(error).__name__}: {error}{place}; --debug shows the whole traceback"


def _listed(found: dict[str, Runnable]) -> str:
    if not found:
        return "no pipeline"
    words = [f"{'pipeline' if isinstance(each, Pipeline) else 'scan'} {name}" for name, each in found.items()]
    if len(words) == 1:
        return f"the {words[0]}"
    if any(not isinstance(each, Pipeline) for each in found.values()):
        return "the " + ", the ".join(words)
    return "the pipelines " + ", ".join(found)
