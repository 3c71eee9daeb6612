"""How fast Holdfast is, measured beside what it is compared with: `python -m bench --help`.

A *case* asks one question. Its *probes* answer it, each in a fresh process and a fresh folder, one after the other,
round after round, so that a noisy minute disturbs all of them alike. A *reading* is what one process measured. A *goal*
is a bound on a figure, or on a ratio of two, and stands beside what was measured.

    case.py      the nouns            measure.py      runs a case               child.py     the process of one reading
    items.py     made-up data         floor.py        the fastest possible      script.py    the honest rival
    subject.py   Holdfast itself      cases/          one file per question     summary.py   medians, spreads, goals
    peers/       the others           environment.py  where the peers live      strace.py    counts syncs
    table.py     terminal             page.py         Markdown                  picture.py   SVG
    pages.py     the data's types     database.py     the driver, set safely    machine.py   where it was measured
"""
