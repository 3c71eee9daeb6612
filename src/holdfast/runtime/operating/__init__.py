"""What operators do, what it would do, and what the promises rest on."""
