"""Handles for operators: a store, its batches, their items, dead letters, orphans and cursors.

Everything that the `holdfast` command can do is here; the command calls nothing else.
"""
