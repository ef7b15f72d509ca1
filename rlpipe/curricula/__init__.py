"""Curricula, which choose the starts of training episodes: the interface (``base``), and one file for each."""
