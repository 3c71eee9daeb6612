"""The command `holdfast`: parse, call the runtime, show what it says."""
