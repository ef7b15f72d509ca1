"""What backends share."""
