"""Code that several simulators share."""
