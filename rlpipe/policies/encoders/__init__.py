"""Encoders: networks that turn one leaf of an observation into numbers."""
