"""Learning: trajectories or demonstrations become new weights, and metrics of the update."""
