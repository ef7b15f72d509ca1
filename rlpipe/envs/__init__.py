"""Simulators: the interface (``base``), what simulators share (``shared``), and one file or folder for each."""
