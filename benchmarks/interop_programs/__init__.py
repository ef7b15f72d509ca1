"""Programs that ``benchmarks/interop.py`` runs in environments of other packages, which lack rlpipe."""
