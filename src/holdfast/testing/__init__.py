"""For tests of Holdfast, and of what is built on it: a manual clock, the suite every store passes, a simulator."""
