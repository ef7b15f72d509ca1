"""Has openpi's official client ask a server, ``python ask_openpi.py URL KEY SIZE``; prints what it saw as JSON."""

import json
import sys

import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy


def main() -> None:
    """Asks, and prints."""
    url, key, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    request = {key: np.linspace(-1, 1, size, dtype=np.float32)}
    policy, other = WebsocketClientPolicy(url), WebsocketClientPolicy(url)
    metadata = policy.get_server_metadata()
    seeded = [policy.infer({**request, "seed": 7})["actions"] for _ in range(2)]
    beside = other.infer({**request, "seed": 7})["actions"]
    answer = policy.infer(request)
    broker = ActionChunkBroker(other, metadata["execute"])
    steps = [broker.infer(request)["actions"] for _ in range(5)]
    try:
        policy.infer({"nothing": request[key]})
        error = ""
    except RuntimeError as refusal:
        error = str(refusal)
    print(json.dumps({
        "rlpipe": metadata["rlpipe"],
        "estimates": len(metadata["estimates"]),
        "actions": list(answer["actions"].shape),
        "dtype": answer["actions"].dtype.str,
        "infer_ms": answer["server_timing"]["infer_ms"],
        "the same seed repeats": bool((seeded[0] == seeded[1]).all() and (seeded[0] == beside).all()),
        "steps of the broker": [list(step.shape) for step in steps],
        "error": error,
    }))  # fmt: skip


main()
