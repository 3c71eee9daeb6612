"""Pure decisions. Nothing in this package reads a clock, a file, a random number or a log."""
