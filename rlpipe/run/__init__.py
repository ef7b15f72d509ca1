"""The files of a run, and everything that reads and writes them."""
