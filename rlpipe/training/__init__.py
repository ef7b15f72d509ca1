"""The training loop and the engine in this process."""
