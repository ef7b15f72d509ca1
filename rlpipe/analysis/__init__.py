"""Judgement of runs: evaluation reports, comparison, diagnosis."""
