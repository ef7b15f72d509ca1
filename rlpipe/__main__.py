"""``python -m rlpipe`` is ``rlpipe``."""

from rlpipe.cli import main

if __name__ == "__main__":
    main()
