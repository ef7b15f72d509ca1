"""Updates that ``benchmarks/gpu.py`` and ``benchmarks/learner.py`` measure, and what they cost a device."""
