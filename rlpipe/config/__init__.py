"""Configuration: keys and their declaration, loading, checks, stages."""
