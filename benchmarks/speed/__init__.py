"""Contenders of ``benchmarks/throughput.py``, and what becomes of their measurements."""
