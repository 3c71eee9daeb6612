"""Benchmarks of Holdfast beside alternatives: `python -m bench --help`.

A *case* asks one question. Its *probes* answer it, each in a fresh process and a fresh folder, one after the other,
round after round, so that a noisy minute affects all of them equally. A *reading* is the measurement of one process. A
*goal* is a bound on a figure, or on a ratio of two, and is shown beside the measurement.

        case.py      the data types       measure.py      runs a case               child.py     the process of one
    reading
        items.py     generated data       floor.py        the fastest possible      script.py    the hand-written script
        subject.py   Holdfast itself      cases/          one file per question     summary.py   medians, spreads, goals
        peers/       the alternatives     environment.py  the peers' environments   strace.py    counts syncs
        table.py     terminal             page.py         Markdown                  picture.py   SVG
        pages.py     the data's types     database.py     the driver, set safely    machine.py   the measured machine
"""
