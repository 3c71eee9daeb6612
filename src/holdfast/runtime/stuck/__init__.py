"""Orphans: what is stuck, since when, in whose hands, and what is done about it."""
