"""What a run would do, and what becomes of a batch whose code changed."""
