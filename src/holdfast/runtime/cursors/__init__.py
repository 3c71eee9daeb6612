"""What operators do with the cursors of a scan: look at them, move them, copy them, compare them with the source.

`standing` gathers what is stored, `history` reads the journal, `document` puts both into one state, `acts` writes what
was decided in `core.cursors`, `planting` makes a batch that begins in the middle, and `audit` counts the source.
"""
