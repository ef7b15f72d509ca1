"""Algorithms, one file each. The file's name is the algorithm's name in a configuration."""
