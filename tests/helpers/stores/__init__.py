"""What each backend's own store holds, read with that service's own library: one module a backend.

Each module has ``OPTIONS`` (overrides of the configuration that make the backend work without a network),
``TOLERANCE`` (relative, of the precision it keeps numbers with) and ``numbers(run)``: what stands there for a run
directory, by iteration and by metric. It raises ``AssertionError`` when the store holds a number twice. Where the store
says how a run ended, ``status(run)`` reads it, and ``STATUS_COMPLETED`` is the word for a run that completed.
"""
