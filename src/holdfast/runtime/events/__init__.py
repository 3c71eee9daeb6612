"""Telling others what happened: delivery, receivers, the form."""
