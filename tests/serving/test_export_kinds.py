"""Every kind of policy as a graph, on a thousand random observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from rlpipe.config.sections import acting_sections
from rlpipe.policies.base import make_policy
from rlpipe.serving.export import TOLERANCE, differences, random_observations, write_graph
from rlpipe.serving.runner import graph_inputs
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from rlpipe.trajectory.tree import tensors

pytestmark = pytest.mark.soak
OBSERVATIONS = 1_000
BOUNDS = np.full(3, -1, np.float32), np.full(3, 2, np.float32)
VECTOR = SpaceSpec(5, 3, None, *BOUNDS)
LEAVES = {
    "camera/rgb": LeafSpec((18, 18, 3), "uint8"),
    "depth": LeafSpec((18, 18, 1), "int16"),
    "state": LeafSpec((4,)),
    "word": LeafSpec((2,), "int64", (3, 5)),
}
TREE = SpaceSpec.of_tree(LEAVES, 3, None, *BOUNDS)
KINDS: dict[str, tuple[SpaceSpec, dict[str, Any]]] = {
    "chunks, normalised": (VECTOR, {"name": "mlp", "chunk_size": 4, "normalize_observations": True}),
    "discrete parts": (SpaceSpec(5, 2, (3, 4)), {"name": "mlp", "chunk_size": 2}),
    "memory and cameras": (TREE, {"name": "gru", "memory_size": 8, "normalize_observations": True}),
    "squashed, exploring": (VECTOR, {"name": "squashed_gaussian", "random_steps": 9, "random_actions": 0.3}),
    "tokens": (VECTOR, {"name": "tokens", "chunk_size": 2}),
    "tokens one by one": (VECTOR, {"name": "tokens", "decoding": "autoregressive"}),
    "residual blocks": (TREE, {"name": "mlp", "encoders": {"camera/rgb": {"name": "impala_cnn"}}}),
    "residual policy": (VECTOR, {"name": "residual", "base": "run", "base_policy": {"name": "mlp"}}),
}


@pytest.mark.parametrize(("spaces", "options"), KINDS.values(), ids=KINDS)
def test_a_graph_decides_as_the_policy_does(tmp_path, spaces, options):
    algorithm = "sac" if options["name"] in ("squashed_gaussian", "residual") else "ppo"
    class_, section, learnt = acting_sections({"policy": options, "algorithm": {"name": algorithm}})
    torch.manual_seed(0)
    policy = make_policy(class_, section, learnt, spaces)
    generator = np.random.default_rng(0)
    observations = random_observations(spaces, OBSERVATIONS, generator)
    noise = policy.noise(generator, OBSERVATIONS)
    memories = generator.normal(size=(OBSERVATIONS, section.memory_width)).astype(np.float32)
    tree = tensors(Tree(observations) if isinstance(observations, dict) else observations)
    policy.update_normalizer(tree)
    card = {
        "spaces": spaces.as_json(), "memory_width": section.memory_width, "deterministic": False, "policy": "any",
    }  # fmt: skip
    write_graph(policy, card, tmp_path / "policy.onnx")
    feed = graph_inputs(observations, noise, memories if section.memory_width else None)
    actions, *remembered = onnxruntime.InferenceSession(tmp_path / "policy.onnx").run(None, feed)
    with torch.inference_mode():
        decided = policy.decide(tree, torch.from_numpy(noise), torch.from_numpy(memories))
    apart = differences(decided.actions.numpy(), actions, spaces.chunked(section.chunk_size))
    ties = OBSERVATIONS // 1000 if spaces.num_actions or policy.in_tokens else 0
    assert (apart > TOLERANCE).sum() <= ties
    if remembered:
        assert np.abs(decided.memories.numpy() - remembered[0]).max() <= TOLERANCE
