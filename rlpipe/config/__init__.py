"""Configuration: schema, loading, checks."""
