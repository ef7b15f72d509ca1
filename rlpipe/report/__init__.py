"""Pages, replays, videos and pictures of runs, made from their directories: contents are collected apart from looks."""
