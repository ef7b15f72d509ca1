"""A simulator in a process of its own, with a Python of the user's choice."""
