"""What people are told: progress, reports, status, statistics, the story of an item."""
