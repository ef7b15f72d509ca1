"""What simulators share."""
