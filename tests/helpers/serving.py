"""A policy behind a socket, in a thread of the test."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from rlpipe.serving.server import PolicyServer, metadata_of, recorded_policy, request_keys


@contextmanager
def served(path, protocol="openpi"):
    """Serves the policy of a run, and yields its address."""
    policy, record = recorded_policy(path)
    metadata = metadata_of(policy, record, request_keys(policy.card))
    with listening(PolicyServer(policy, metadata, protocol=protocol, port=0)) as url:
        yield url


@contextmanager
def listening(server: PolicyServer):
    """Lets a server answer, and yields its address."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.url
    finally:
        server.close()
        thread.join()
