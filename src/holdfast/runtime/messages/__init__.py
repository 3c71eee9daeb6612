"""One message at a time, on one thread; inside a cloud function."""
