"""Learning: trajectories in, weights out."""
