"""What algorithms share."""
