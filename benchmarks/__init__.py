"""Scripts that measure rlpipe; each says in its first lines how to run it."""
