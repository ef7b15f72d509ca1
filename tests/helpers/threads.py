"""A library that starts a thread when it is loaded, as some simulators do."""

from __future__ import annotations

import threading


def start() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
