"""What is recorded, verified: before an item goes on, and all of it."""
