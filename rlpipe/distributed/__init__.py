"""The parts of a run as Ray actors. The only folder that imports Ray."""
