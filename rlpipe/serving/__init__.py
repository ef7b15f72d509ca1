"""Serving: trained policies outside of a run, in this process, in a file or behind a socket."""
