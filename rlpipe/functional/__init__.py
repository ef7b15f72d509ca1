"""Pure functions of tensors: no configuration, no state."""
