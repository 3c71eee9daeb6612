"""What an operator holds: a store, its batches, their items, dead letters, orphans and cursors.

Everything that the command `holdfast` can do is here; the command calls nothing else.
"""
