"""What every test may use. Fixtures of one layer stand in that layer's own conftest."""

pytest_plugins = ("tests.bytecode", "tests.needed", "tests.promises")
