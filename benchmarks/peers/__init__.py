"""Other libraries on the same task; ``python benchmarks/peers/install.py`` makes an environment for each."""
