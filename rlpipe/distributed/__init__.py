"""The parts of a run as Ray actors. The only folder that imports Ray."""

import os

# Of a process that dies Ray prints a paragraph of its own, on standard output; who died and why is told by us. Read by
# Ray when it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
