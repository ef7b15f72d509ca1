"""Checks of machines before a run, without Ray: facts are measured, then judged one at a time (``rlpipe doctor``)."""
