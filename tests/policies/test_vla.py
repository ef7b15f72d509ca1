"""A vision-language-action policy, with tiny random models of two families made here: nothing is downloaded."""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import runpy
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe import plugins
from rlpipe.algorithms.shared.optimizer import FlatAdam
from rlpipe.collection.inference import InferenceServer
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.config.tree import from_yaml
from rlpipe.errors import ConfigError
from rlpipe.learning.demonstrated import Demonstrated
from rlpipe.learning.on_policy import Learner
from rlpipe.policies.base import build_policy
from rlpipe.policies.shared.recomputation import recompute
from rlpipe.policies.vla import VLAPolicy
from rlpipe.policies.vla.policy import VLAConfig, find_camera
from rlpipe.run import checkpoint
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from tests.helpers.runs import lines, scripted, without_timings

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers: pip install 'rlpipe[vla]'"
)

DOCS = Path(__file__).parent.parent.parent / "docs"
KINDS = ("smolvlm", "qwen2_vl")
ADAPTERS = {"rank": 2, "alpha": 4, "targets": ["q_proj", "v_proj"]}
BOUND = np.array([1.0, 2.0], dtype=np.float32)
IMAGE = LeafSpec((20, 20, 3), "uint8")
SPEC = SpaceSpec.of_tree({"camera/rgb": IMAGE, "noise": LeafSpec((2,))}, 2, None, -BOUND, BOUND)
TASK = {"name": "gymnasium", "success_key": "is_success", "total_num_envs": 4, "id": "tests.helpers.gym_trees:Sides-v0"}
ALGORITHMS = {
    "ppo": {"name": "ppo", "update_epochs": 2, "num_minibatches": 2},
    "grpo": {"name": "grpo", "update_epochs": 2, "num_minibatches": 2, "group_size": 2},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of tiny models, by kind and type of their weights."""
    make = runpy.run_path(str(DOCS / "make_tiny_vla.py"))["make_tiny_vla"]
    root = tmp_path_factory.mktemp("models")
    made = {(kind, "float32"): make(root / kind, kind) for kind in KINDS}
    made["smolvlm", "bfloat16"] = make(root / "bfloat16", "smolvlm", "bfloat16")
    made["other"] = make(root / "other", "smolvlm", seed=1)
    return made


def made(folder, chunk=1, **options):
    torch.manual_seed(0)
    config = VLAConfig("vla", model=str(folder), chunk_size=chunk, value_hidden_sizes=[8], **{"bins": 8, **options})
    return VLAPolicy(config, SPEC.chunked(chunk))


def observed(count, seed=0):
    """Images that are bright on the left or on the right, in turn, and noise."""
    images = torch.zeros(count, 20, 20, 3, dtype=torch.uint8)
    images[0::2, :, :10], images[1::2, :, 10:] = 255, 255
    return Tree({"camera/rgb": images, "noise": torch.zeros(count, 2)})


def configured(folder, model, *overrides, algorithm="ppo", **policy):
    return scripted(
        folder, "rollout.horizon=8", "learner.lr=0.003", *overrides,
        policy={"name": "vla", "model": str(model), "bins": 8, "value_hidden_sizes": [8], **policy},
        env={"train": TASK}, algorithm=ALGORITHMS[algorithm],
    )  # fmt: skip


def copied(policy):
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}


def differ(before, after):
    """Names of the tensors that are not equal to the last bit."""
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


# --- what the model sees and says


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_the_prompt_is_what_the_models_processor_makes_of_each_row(kind, models):
    policy, images = made(models[kind, "float32"]), observed(2)["camera/rgb"]
    found = policy.prompt(images)
    ids = found["input_ids"]
    assert ids[0, -2:].tolist() == [320, 321]  # a placeholder for each number of the action
    assert torch.equal(ids[0], ids[1])
    assert (ids[0] == 1).sum() == 4  # tokens of the image
    assert 0 not in ids[0].tolist()  # every word of the default instruction is known
    assert found["attention_mask"].shape == ids.shape
    assert found["attention_mask"].all()
    again = policy.prompt(images[1:])  # a row does not depend on its neighbours
    rows = len(found["pixel_values"]) // 2
    assert torch.equal(again["pixel_values"], found["pixel_values"][rows:])


@pytest.mark.parametrize("kind", KINDS)
def test_bin_i_starts_as_the_last_token_but_i_of_the_vocabulary(kind, models):
    from transformers import AutoModelForImageTextToText

    stock = AutoModelForImageTextToText.from_pretrained(models[kind, "float32"], local_files_only=True).eval()
    policy, images = made(models[kind, "float32"], bins=8), observed(3)["camera/rgb"]
    inputs = policy.prompt(images)
    with torch.no_grad():
        embedded = policy.trunk.get_input_embeddings()
        embedded.slots.copy_(embedded.weight[5:6])  # a word that the stock model knows
        expected = stock(**{**inputs, "input_ids": inputs["input_ids"].clamp(max=319).where(
            inputs["input_ids"] < 320, torch.tensor(5))}).logits[:, -2:]  # fmt: skip
        expected = torch.stack([expected[..., 319 - i] for i in range(8)], -1).log_softmax(-1)
        assert torch.allclose(policy._log_probs(observed(3)), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3])
def test_sampled_actions_have_the_probability_they_are_said_to_have(kind, chunk, models):
    policy, observations = made(models[kind, "float32"], chunk, rows_per_pass=2), observed(5)
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 5))
    with torch.no_grad():
        actions, log_probs = policy.act(observations, noise)
    assert actions.shape == (5, 2 * chunk)
    assert log_probs.shape == ((5,) if chunk == 1 else (5, chunk))
    assert (actions.abs() <= torch.from_numpy(BOUND).repeat(chunk)).all()
    steps = () if chunk == 1 else (torch.full((5,), chunk),)
    again, entropy = policy.evaluate_actions(observations, actions, *steps)  # in one pass instead of three
    assert torch.allclose(again, log_probs if chunk == 1 else log_probs.sum(-1), atol=1e-5)
    assert policy.evaluate_parts(observations, actions)[0].shape == (5, chunk, 2)
    assert (entropy <= 2 * chunk * np.log(8) + 1e-5).all()
    assert policy.value(observations).shape == (5,)
    if chunk > 1:
        policy.value_each_action()
        assert policy.value(observations).shape == (5, chunk)


@pytest.mark.parametrize("chunk", [1, 3])
def test_an_empty_share_of_a_minibatch_has_gradients_of_zero(chunk, models):
    policy = made(models["smolvlm", "float32"], chunk)
    parts, entropy = policy.evaluate_parts(observed(0), torch.zeros(0, 2 * chunk))
    assert parts.shape == entropy.shape == (0, chunk, 2)
    assert policy.value(observed(0)).shape == (0,)
    optimizer = FlatAdam(policy.actor_parameters())
    assert not optimizer.gradients(parts.sum() + entropy.sum()).any()


# --- what trains


@pytest.mark.parametrize(("kind", "adapters", "lr"), [("smolvlm", {}, 0.003), ("qwen2_vl", ADAPTERS, 0.01)])
def test_cloning_learns_what_to_do_from_the_image(kind, adapters, lr, models):
    """Without the image, the best loss is ln 2 for each number."""
    policy, observations = made(models[kind, "float32"], adapters=adapters), observed(2)
    actions = torch.tensor([[-0.8, 1.5], [0.7, -1.2]])
    policy.fit_actions(actions)
    shown = Demonstrated(observations, actions)
    optimizer = FlatAdam(policy.actor_parameters())
    optimizer.set_options([lr])
    losses = []
    for _ in range(45):
        loss = shown.loss(policy, "likelihood").mean()
        optimizer.step(optimizer.gradients(loss))
        losses.append(loss.item())
    assert losses[0] > 1.5
    assert losses[-1] < 0.3
    with torch.no_grad():
        assert torch.allclose(policy.act(observations, None)[0], actions, atol=0.3)


@pytest.mark.parametrize(
    ("algorithm", "kind", "dtype", "adapters"),
    [("grpo", "smolvlm", "bfloat16", ADAPTERS), ("ppo", "qwen2_vl", "float32", ADAPTERS),
     ("ppo", "smolvlm", "float32", {})],
)  # fmt: skip
def test_an_update_changes_what_trains_and_nothing_else(algorithm, kind, dtype, adapters, models, tmp_path):
    config = configured(tmp_path, models[kind, dtype], algorithm=algorithm, adapters=adapters)
    worker = RolloutWorker(config.schedule, 0, 1)
    learner = Learner(config.schedule, worker.ready().spec)
    policy, before = learner._policy, copied(learner._policy)
    batch, _ = worker.collect(learner.snapshot(), 0)
    snapshot, _ = learner.update(0, 1, batch)
    trained = {name for name, _ in policy.named_parameters()} - policy._frozen
    acting = {name for name in trained if not name.startswith("critic.")}
    assert differ(before, copied(policy)) == (trained if algorithm == "ppo" else acting)
    assert snapshot.weights.keys() == acting | {"lowest", "width", "files_sha256"}
    assert bool(policy._frozen) == bool(adapters)
    if adapters:
        assert all("lora" in name or name.startswith(("head", "trunk.")) for name in acting)
        sizes = [array.nbytes for array in snapshot.weights.values()]
        assert sum(sizes) < 0.2 * sum(parameter.nbytes for parameter in policy.parameters())
    worker.collect(snapshot, 0)
    for name, array in learner._policy.acting_weights().items():
        assert np.array_equal(array, worker._policy.weights()[name])


@pytest.mark.soak
def test_a_learner_continues_from_a_checkpoint_to_the_last_bit(models, tmp_path):
    config = configured(tmp_path, models["smolvlm", "bfloat16"], "rollout.horizon=4")
    worker = RolloutWorker(config.schedule, 0, 1)
    one = Learner(config.schedule, worker.ready().spec)
    batch, _ = worker.collect(one.snapshot(), 0)
    snapshot, _ = one.update(0, 1, batch)
    meta = {"iteration": 1, "config": "{}", "run_id": "a", "metrics": {}}
    kept = checkpoint.load(checkpoint.save(tmp_path, one.state(), meta))
    other = Learner(config.schedule, worker.ready().spec)
    other.resume(kept.arrays, kept.path)
    assert not differ(copied(one._policy), copied(other._policy))
    assert {parameter.dtype for parameter in other._policy.trunk.vision_model.parameters()} == {torch.bfloat16}
    following, _ = worker.collect(snapshot, 0)
    for learner in (one, other):
        learner.update(0, 2, following)
    assert not differ(copied(one._policy), copied(other._policy))
    mine, theirs = one.state(), other.state()
    assert [name for name, array in mine.items() if not np.array_equal(array, theirs[name])] == []


def test_a_reference_shares_frozen_weights_and_keeps_its_own_adapters(models):
    policy = made(models["smolvlm", "float32"], adapters=ADAPTERS)
    reference = copy.deepcopy(policy).requires_grad_(False)
    own, other = dict(policy.named_parameters()), dict(reference.named_parameters())
    assert {name for name in own if own[name] is other[name]} == policy._frozen
    assert reference.acting_weights().keys() == policy.acting_weights().keys()
    assert all(parameter.requires_grad for parameter in policy.actor_parameters())


# --- runs


def test_a_run_resumes_and_is_evaluated(models, tmp_path):
    config = configured(
        tmp_path, models["smolvlm", "bfloat16"], "runner.total_timesteps=32", "algorithm.update_epochs=1",
        "rollout.horizon=4", "evaluation.episodes=1", adapters=ADAPTERS, chunk_size=2,
    )  # fmt: skip
    run = rlpipe.train(config, local=True).directory
    rlpipe.train(load_config(run / "config.yaml", ["runner.total_timesteps=64"]), resume=run, local=True)
    rows = lines(run, "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2]
    assert rows[0]["metrics"]["train/actor/ratio_max"] > 0
    report = rlpipe.evaluate(run, episodes=2, local=True)
    assert report.metrics["eval/num_trajectories"] == 2


@pytest.mark.extras
def test_the_example_of_the_documentation_runs(models, tmp_path):
    written = re.search(r"```yaml\n(.+?)```", (DOCS / "vla.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    overrides = (
        f"policy.model={models['smolvlm', 'float32']}", f"runner.logger.log_path={tmp_path}",
        "runner.total_timesteps=32", "rollout.horizon=8", "evaluation.episodes=2", "env.train.total_num_envs=4",
        "algorithm.update_epochs=1", "learner.num_threads=1", "runner.logger.logger_backends=[]", "runner.report=false",
    )  # fmt: skip
    assert rlpipe.train(load_config(from_yaml(written), overrides), local=True).directory


def test_an_inference_server_acts_as_a_copy_in_the_worker(models, tmp_path):
    config = configured(tmp_path, models["smolvlm", "bfloat16"], "rollout.inference_wait=null", adapters=ADAPTERS)
    plan = config.schedule
    own = RolloutWorker(plan, 0, 1)
    snapshot = Learner(plan, own.ready().spec).snapshot()
    server = InferenceServer(config, own.ready().spec, 0, [0])
    served = server.load(snapshot)
    asking = RolloutWorker(plan, 0, 1, 0, server)
    here, there = own.collect(snapshot, 0)[0], asking.collect(served, 0)[0]
    assert np.array_equal(here.actions, there.actions)
    assert np.array_equal(here.log_probs, there.log_probs)
    assert {tensor.device.type for tensor in asking._policy._policy.state_dict().values()} == {"meta"}


@pytest.mark.soak
@pytest.mark.skipif(
    "GenuineIntel" in Path("/proc/cpuinfo").read_text() and "MKL_CBWR" not in os.environ,
    reason="on Intel processors MKL rounds by the alignment of arrays, unless MKL_CBWR is set: MKL_CBWR=COMPATIBLE",
)
def test_a_run_on_ray_has_the_numbers_of_one_in_this_process(ray_cluster, models, tmp_path):
    few = ("runner.total_timesteps=64", "rollout.num_workers=1", "evaluation.episodes=1")
    config = configured(tmp_path, models["smolvlm", "bfloat16"], *few, adapters=ADAPTERS)
    here, on_ray = (rlpipe.train(config, local=local).directory for local in (True, False))
    assert without_timings(here) == without_timings(on_ray)


# --- what can be wrong


def test_nothing_is_downloaded(models, monkeypatch):
    def refused(*_args):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    made(models["qwen2_vl", "float32"])


def refused(folder, words, model, *overrides, **policy):
    """Checks that a run is refused before it has a directory."""
    with pytest.raises(ConfigError, match=words):
        rlpipe.train(configured(folder, model, *overrides, **policy))
    assert not any(folder.rglob("run.json"))


def test_a_missing_folder_is_an_error_that_says_where_to_put_the_model(tmp_path):
    refused(tmp_path, r"policy.model is .*/nowhere, but there is no such folder. rlpipe downloads nothing: put a",
            tmp_path / "nowhere")  # fmt: skip


def test_missing_files_are_named(models, tmp_path):
    folder = shutil.copytree(models["smolvlm", "float32"], tmp_path / "model")
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).unlink()
    words = r"where these are missing: weights \(\*.safetensors\), a tokenizer \(tokenizer.json, tokenizer.model or"
    refused(tmp_path, words + ".*Download the whole folder again: hf download", folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    refused(tmp_path, "model-1.safetensors", folder)


def test_weights_that_the_files_lack_are_named(models, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(models["smolvlm", "float32"], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.text_model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"whose files lack weights of the model, 1 in all: model.text_model.norm.weight"
    ):
        made(folder)


def test_a_missing_extra_is_named(models, tmp_path, monkeypatch):
    stock = importlib.util.find_spec
    monkeypatch.setattr(plugins.importlib.util, "find_spec", lambda name: None if name == "peft" else stock(name))
    words = r"policy.name=vla needs the package peft, which is not installed: pip install 'rlpipe\[vla\]'"
    refused(tmp_path, words, models["smolvlm", "float32"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"camera": "camera/rbg"}, r"policy.camera is 'camera/rbg', which is not observed; did you mean 'camera/rgb'"),
        ({"camera": "noise"}, r"policy.camera is 'noise', which is not an image .* There are camera/rgb."),
        ({"bins": 400}, r"policy.bins is 400, but the model's vocabulary has 320 tokens"),
        ({"adapters": {"rank": 2, "targets": ["q"]}}, r"policy.adapters.targets is \['q'\].* layers are .*q_proj"),
        ({"adapters": {"rang": 2}}, r"unknown key policy.adapters.rang; did you mean 'rank'"),
        ({"adapters": {"rank": 0}}, r"policy.adapters.rank is 0; it must be an integer, at least 1"),
        ({"model": ""}, r"policy.model is empty"),
        ({"instruction": "<image> again"}, r"whose processor cannot be used with an instruction"),
    ],
)
def test_an_option_that_cannot_be_is_an_error_before_anything_starts(options, words, models, tmp_path):
    refused(tmp_path, words, **{"model": models["smolvlm", "float32"], **options})


def test_a_camera_must_be_named_where_there_are_two():
    two = SpaceSpec.of_tree({"left": IMAGE, "right": IMAGE}, 2, None, -BOUND, BOUND)
    with pytest.raises(ConfigError, match=r"policy.camera is not given, .* There are left, right."):
        find_camera(two, None)
    assert find_camera(two, "right")[0] == "right"
    with pytest.raises(ConfigError, match=r"needs an image of bytes .* The leaves are a bare vector."):
        find_camera(SpaceSpec(3, 2, None, -BOUND, BOUND), None)


def test_neither_three_depths_nor_a_stack_of_pictures_is_a_picture_in_colour():
    leaves = {"depth": LeafSpec((8, 8, 3), "int16"), "stack": LeafSpec((8, 8, 6), "uint8")}
    spec = SpaceSpec.of_tree(leaves, 2, None, -BOUND, BOUND)
    with pytest.raises(ConfigError, match=r"The leaves are depth int16 \[8, 8, 3\], stack uint8 \[8, 8, 6\]."):
        find_camera(spec, None)
    both = SpaceSpec.of_tree(leaves | {"rgb": LeafSpec((8, 8, 3), "uint8")}, 2, None, -BOUND, BOUND)
    assert find_camera(both, None)[0] == "rgb"
    with pytest.raises(ConfigError, match=r"policy.camera is 'depth', which is not an image of bytes"):
        find_camera(both, "depth")


def test_a_worker_with_other_files_is_refused(models, tmp_path):
    mine, theirs = (configured(tmp_path, models[key]) for key in (("smolvlm", "float32"), "other"))
    worker = RolloutWorker(mine.schedule, 0, 1)
    learner = Learner(theirs.schedule, worker.ready().spec)
    with pytest.raises(ConfigError, match=r"copy the same folder to every machine, and name it with policy.model"):
        worker.collect(learner.snapshot(), 0)


def test_a_file_that_decides_nothing_does_not_count(models, tmp_path):
    folder = shutil.copytree(models["smolvlm", "float32"], tmp_path / "model")
    (folder / "README.md").write_text("a note")
    assert made(folder).files_digest == made(models["smolvlm", "float32"]).files_digest


def test_the_weights_of_all_processes_come_from_the_seed_and_the_files(models, tmp_path):
    config = configured(tmp_path, models["smolvlm", "float32"], adapters=ADAPTERS)
    spec = RolloutWorker(config.schedule, 0, 1).ready().spec
    one, other = (build_policy(config, spec) for _ in range(2))
    assert not differ(copied(one), copied(other))


# --- memory


def saved_bytes(policy, count=4):
    """Gradients of a loss, and the bytes that were saved for them."""
    storages = {}

    def save(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    observations = observed(count)
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        log_probs, _ = policy.evaluate_actions(observations, torch.zeros(count, 2))
        loss = (log_probs + policy.value(observations)).sum()
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    return torch.autograd.grad(loss, trained, allow_unused=True), sum(storages.values())


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapters", [{}, ADAPTERS], ids=["whole", "adapters"])
def test_checkpointing_computes_the_models_layers_again_and_changes_no_gradient(kind, adapters, models):
    plain, again = made(models[kind, "float32"], adapters=adapters), made(models[kind, "float32"], adapters=adapters)
    recompute(again.recomputed_modules())
    (expected, before), (found, after) = saved_bytes(plain), saved_bytes(again)
    assert after < 0.8 * before
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
