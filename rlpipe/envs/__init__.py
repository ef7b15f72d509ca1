"""Simulators, one file each. The file's name is the simulator's name in a configuration."""
