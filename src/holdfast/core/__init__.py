"""Pure decisions. Nothing in here reads a clock, a file, a random number or a log."""
