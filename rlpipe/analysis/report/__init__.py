"""Report of runs as one HTML file: what it says is collected apart from how it looks."""
