"""Judging finished runs: reports, comparison, diagnosis."""
