"""Backends that need Ray."""
