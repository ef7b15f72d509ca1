"""Demonstrations: their files, their checks, and the motion planner that makes them."""
