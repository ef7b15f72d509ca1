"""Collection: a simulator and a policy produce trajectories, and the metrics that describe them."""
