"""Views of the metrics. One file each; the file's name is its name in a configuration."""
