"""What should be there, is recorded and is there: gathered, compared, put right."""
