"""The record checked, taken out, and made again."""
