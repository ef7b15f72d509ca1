"""Demonstrations: files, checks, the planner."""
