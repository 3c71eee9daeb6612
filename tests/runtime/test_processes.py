"""Handlers in worker processes: they import the program, may die, and lose one item at most."""

from pathlib import Path

import pytest

import holdfast as hf
from tests.runtime.support import App, outputs

HEAD = """
import os, sys, time
import holdfast as hf

book = hf.Pipeline("book")
PARENT = os.getpid()
"""

TAIL = """
if __name__ == "__main__":
    report = book.run(range(12), workers=2, progress=False{options})
    print(report)
    sys.exit(report.exit_code)
"""


def program(folder: Path, stages: str, options: str = "", **names: str) -> App:
    return App(folder, HEAD + stages + TAIL.format(options=options), **names)


def stored(folder: Path) -> hf.Pipeline:
    book = hf.Pipeline("book", store=folder / ".holdfast" / "state.db")
    book.stage(name="read")(lambda value: value)
    return book


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        pytest.param('@book.stage(executor="processes")', "", id="by the stage"),
        pytest.param("@book.stage", ', executor="processes"', id="by the run", marks=pytest.mark.slow),
    ],
)
def test_a_stage_runs_in_other_processes(folder: Path, stage: str, options: str) -> None:
    app = program(
        folder,
        f"""
{stage}
def read(number: int, ctx: hf.Context) -> dict:
    ctx.spend(usd="0.01")
    ctx.measure(words=3)
    return {{"n": number, "pid": os.getpid(), "name": __name__}}
""",
        options,
    )
    process = app.start()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    made = outputs(stored(folder))
    assert {value["n"] for value in made.values()} == set(range(12))
    assert process.pid not in {value["pid"] for value in made.values()}
    assert "__main__" not in {value["name"] for value in made.values()}
    report = stored(folder).report()
    assert str(report.totals.usd) == "0.12"
    stage_facts = report.metrics.stages[0]
    assert stage_facts.metrics["words"].sum == 36
    assert stage_facts.queue.max < 60, "the time in the queue is measured across processes"


def test_threads_the_loop_and_processes_work_together(folder: Path) -> None:
    app = program(
        folder,
        """
@book.stage
def first(number: int) -> int:
    return number + 1

@book.stage(executor="processes")
def second(number: int) -> int:
    return number * 10

@book.stage
async def read(number: int) -> int:
    return number + 5
""",
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr
    assert "12 done" in ended.stdout


@pytest.mark.slow
@pytest.mark.promise("A7", "A15")
def test_a_process_that_dies_loses_the_item_that_killed_it_and_no_other(folder: Path) -> None:
    app = program(
        folder,
        """
ONCE = hf.Retry(attempts=1)

@book.stage(executor="processes", retry=ONCE)
def read(number: int) -> int:
    if number == 3:
        os._exit(1)
    time.sleep(0.02)
    return number

@book.stage(executor="processes", retry=ONCE)
def check(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), 9)
    return number
""",
    )
    ended = app.run()
    assert ended.returncode == 1, ended.stderr
    assert "10 done + 0 skipped + 2 dead" in ended.stdout
    assert "3 at read: process_died" in ended.stdout
    assert "5 at check: process_died" in ended.stdout


@pytest.mark.promise("A15")
def test_a_batch_of_one_item_that_kills_its_process_ends(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def read(number: int) -> int:
    os._exit(1)

if __name__ == "__main__":
    report = book.run([1], workers=2, progress=False)
    print(report)
    sys.exit(report.exit_code)
""",
    )
    ended = app.run()
    assert ended.returncode == 1, ended.stderr
    assert "process_died" in ended.stdout
    assert "1 of 1 attempts used" in ended.stdout


def test_a_program_without_a_guard_is_told_what_to_write(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
@book.stage(executor="processes")
def read(number: int) -> int:
    return number

book.run(range(5), progress=False)
""",
    )
    ended = app.run()
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("holdfast.UsageError")
    assert 'if __name__ == "__main__":' in last
    assert stored(folder).report().counts.dead == 0


@pytest.mark.slow
def test_a_pipeline_inside_a_function_is_told_to_move(folder: Path) -> None:
    app = App(
        folder,
        """
        import holdfast as hf

        def main():
            book = hf.Pipeline("book")

            @book.stage(executor="processes")
            def read(number: int) -> int:
                return number

            book.run(range(5), progress=False)

        if __name__ == "__main__":
            main()
        """,
    )
    ended = app.run()
    assert ended.returncode == 1
    assert "is not at the top level of a module" in ended.stderr


@pytest.mark.slow
def test_a_pipeline_at_a_prompt_is_told_to_use_threads(folder: Path) -> None:
    import subprocess
    import sys

    code = HEAD + "\nbook.stage(name='read', executor='processes')(abs)\nbook.run([1], progress=False)\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert ended.returncode == 1
    assert "move it into a file, or use threads" in ended.stderr


@pytest.mark.slow
def test_a_program_in_a_package_and_beside_its_modules_is_found(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "tools.py").write_text("def double(number): return 2 * number\n")
    source = """
from pack.tools import double

@book.stage(executor="processes")
def read(number: int) -> int:
    return double(number)
"""
    (folder / "pack" / "work.py").write_text(HEAD + source)
    app = App(
        folder,
        """
        import sys
        from pack.work import book

        if __name__ == "__main__":
            sys.exit(book.run(range(6), workers=2, progress=False).exit_code)
        """,
        cold=True,
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr
    assert outputs(stored(folder)) == {n: 2 * n for n in range(6)}


@pytest.mark.slow
def test_a_process_pool_of_the_users_is_used_and_left_open(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

@book.stage
def read(number: int) -> int:
    return os.getpid()

def nothing():
    return 7

if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        report = book.run(range(12), executor=pool, progress=False)
        assert pool.submit(nothing).result() == 7
    assert os.getpid() not in [result.output for result in report.results()]
    sys.exit(report.exit_code)
""",
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_process_pool_of_the_users_that_breaks_is_told_and_nobody_is_buried(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

@book.stage
def read(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number

if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        book.run(range(12), executor=pool, progress=False)
""",
    )
    ended = app.run()
    assert "executor passed to run() is broken" in ended.stderr
    counts = stored(folder).report().counts
    assert (counts.dead, counts.expected) == (0, 12)


def test_a_run_inside_a_process_of_the_users_is_a_run_like_any_other(folder: Path) -> None:
    app = App(
        folder,
        HEAD
        + """
import multiprocessing

@book.stage
def read(number: int) -> int:
    return number

def work():
    book.run(range(40), workers=2, progress=False).raise_unless_complete()

if __name__ == "__main__":
    several = [multiprocessing.get_context(how).Process(target=work) for how in ("fork", "spawn")]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 0]
    assert book.report().counts.done == 40
""",
    )
    ended = app.run()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("value", ["'\\udcff'", "print", "float('nan')", "'x' * (65 << 20)"])
def test_a_wrong_answer_of_a_process_fails_its_item(folder: Path, value: str) -> None:
    app = program(
        folder,
        f"""
@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def read(number: int):
    return {value} if number == 3 else number

@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def other(number: int) -> int:
    if number == 4:
        raise ValueError("a file called \\udcff")
    return number
""",
    )
    ended = app.run()
    assert "10 done + 0 skipped + 2 dead" in ended.stdout, ended.stderr
    assert "invalid_output" in ended.stdout
    assert "process_died" not in ended.stdout
