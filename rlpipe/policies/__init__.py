"""Policies, one file each. The file's name is the policy's name in a configuration."""
