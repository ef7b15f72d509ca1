"""Guides, the reference, and the scripts that write it."""
