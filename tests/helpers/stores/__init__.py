"""Readers of each backend's own store, with the service's own library: one module for each backend.

Each module has ``OPTIONS`` (overrides of the configuration with which the backend works without a network),
``TOLERANCE`` (relative, by the precision of the store) and ``numbers(run)``, which returns the numbers that the store
holds of a run directory, by iteration and by metric, and raises ``AssertionError`` if it holds one twice. If the store
records how a run ended, ``status(run)`` reads it, and ``STATUS_COMPLETED`` is its word for a run that completed.
"""
