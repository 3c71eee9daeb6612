"""The tests. Each folder is a layer; docs/layers.toml names them. A test is marked with the promises that it proves."""
