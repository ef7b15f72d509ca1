"""Policies from elsewhere, evaluated under our protocol. A new kind is a new file, and an entry in ``naming``."""
