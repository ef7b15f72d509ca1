"""Collection: simulators and policies make trajectories and metrics."""
