"""Policies: the interface (``base``), what they share (``shared``), and one file or folder for each."""
