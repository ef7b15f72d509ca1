"""Formats of demonstrations, one file each: every one is read into the same episodes and written from them."""
