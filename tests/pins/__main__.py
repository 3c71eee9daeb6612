"""Write the pins again after a change that users are meant to see: python -m tests.pins"""

from tests.pins.surface import PINS

for path, make in PINS.items():
    path.write_text(make(), encoding="utf-8")
