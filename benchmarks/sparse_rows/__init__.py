"""The parts of ``benchmarks/sparse.py``."""
