"""Metrics backends, one file each. The file's name is the backend's name in a configuration."""
