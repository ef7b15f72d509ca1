"""``python -m rlpipe`` is ``rlpipe``."""

import sys

try:
    from rlpipe.cli import main
except ModuleNotFoundError as error:  # the source of rlpipe is here, but not what it needs
    sys.exit(
        f"{sys.executable}: No module named {error.name}\n"
        "rlpipe needs it. Use the Python in which rlpipe is installed; on a Ray cluster, activate its environment "
        "before `ray start`."
    )

if __name__ == "__main__":
    main()
