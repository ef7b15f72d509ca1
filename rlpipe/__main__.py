"""``python -m rlpipe`` is ``rlpipe``."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # the present folder may be gone
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # main() adds it at the end, where its modules stand in for none of the standard library

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
