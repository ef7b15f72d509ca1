"""Shell of the pages that rlpipe writes: one file each, opened from a disk, which asks no address for anything."""
