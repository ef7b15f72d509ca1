"""Other libraries on the same task, each in a virtual environment of its own: ``python benchmarks/peers/install.py``."""
