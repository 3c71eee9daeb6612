"""How a batch ends or pauses: its course, breakers, the comparison at its end, the seal."""
