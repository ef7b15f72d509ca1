"""Curricula: which starts the episodes of training have, one curriculum per file."""
