"""Encoders: what each leaf becomes, and which leaf each refuses."""

from __future__ import annotations

import pytest
import torch

from rlpipe.errors import ConfigError
from rlpipe.plugins import shipped
from rlpipe.policies.encoders.base import check_encoders, default_name, make_encoder
from rlpipe.policies.shared.features import Features, TreeMoments
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree

IMAGE, VECTOR, CHOICE = LeafSpec((20, 24, 3), "uint8"), LeafSpec((2,)), LeafSpec((2,), "int64", (3, 2))


@pytest.mark.parametrize(("leaf", "name"), [(IMAGE, "drq_cnn"), (VECTOR, "vector"), (CHOICE, "one_hot")])
def test_each_leaf_has_the_encoder_that_fits_it(leaf, name):
    assert default_name(leaf) == name


def test_a_vector_stays_as_it_is_and_a_choice_becomes_a_one_at_its_place():
    assert make_encoder(VECTOR, "v", {})(torch.tensor([[1.5, 2.0]])).tolist() == [[1.5, 2.0]]
    assert make_encoder(CHOICE, "c", {})(torch.tensor([[2, 0]])).tolist() == [[0, 0, 1, 1, 0]]
    one = make_encoder(LeafSpec((), "int64", (3,)), "c", {})
    assert one(torch.tensor([1, 2])).tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("name", ["drq_cnn", "impala_cnn"])
def test_images_of_bytes_become_as_many_numbers_as_promised(name):
    encoder = make_encoder(IMAGE, "camera", {"camera": {"name": name, "width": 7}})
    images = torch.randint(256, (5, 20, 24, 3), dtype=torch.uint8)
    outputs = encoder(images)
    assert outputs.shape == (5, encoder.width) == (5, 7)
    assert outputs.std(0).max() > 0, "different images give different numbers"


def test_the_features_of_a_tree_are_its_chosen_leaves_side_by_side():
    spec = SpaceSpec.of_tree({"a": VECTOR, "b": CHOICE}, 1)
    tree = Tree({"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[0, 1]])})
    assert Features(spec, {}, None, "")(tree).tolist() == [[1, 2, 1, 0, 0, 0, 1]]
    assert Features(spec, {}, ["b", "a"], "")(tree).tolist() == [[1, 0, 0, 0, 1, 1, 2]]


def test_a_bare_vector_passes_through_without_weights():
    features = Features(SpaceSpec(3, 1), {}, None, "")
    x = torch.randn(2, 3)
    assert features(x) is x
    assert list(features.parameters()) == []


def test_the_fractions_of_a_tree_are_normalised_leaf_by_leaf_and_bytes_are_not():
    moments = TreeMoments({"a": LeafSpec((1,)), "image": IMAGE})
    tree = Tree({"a": torch.tensor([[1.0], [3.0]]), "image": torch.zeros(2, 20, 24, 3, dtype=torch.uint8)})
    moments.update(tree)
    normal = moments.normalize(tree)
    assert normal["a"].tolist() == [[-1], [1]]
    assert normal["image"] is tree["image"]


@pytest.mark.parametrize(
    ("leaf", "chosen", "words"),
    [
        (VECTOR, {"name": "drq_cnn"}, "needs a uint8 image .* but the observation x is float32"),
        (LeafSpec((8, 8, 3), "uint8"), {"name": "drq_cnn"}, "at least 17 x 17 pixels"),
        (IMAGE, {"name": "one_hot"}, "needs a Discrete or MultiDiscrete space"),
        (CHOICE, {"name": "vector"}, "needs numbers, .* a choice"),
        (IMAGE, {"name": "drq_cnn", "chanels": 3}, "unknown key policy.encoders.x.chanels.*channels"),
        (IMAGE, {"width": 0}, "policy.encoders.x.width is 0; it must be at least 1"),
        (IMAGE, {"name": "resnet"}, "rlpipe/policies/encoders/ has no resnet; it has"),
    ],
)
def test_an_encoder_that_cannot_be_is_an_error_that_names_the_key(leaf, chosen, words):
    with pytest.raises(ConfigError, match=words):
        make_encoder(leaf, "x", {"x": chosen})


def test_a_map_of_few_cells_is_a_vector_and_one_that_fits_no_convolutions_can_be():
    map_of_cells, banner = LeafSpec((7, 7, 3), "uint8"), LeafSpec((4, 40, 3), "uint8")
    assert make_encoder(map_of_cells, "x", {}).width == 147
    with pytest.raises(ConfigError, match=r"at least 17 x 17 pixels.*policy.encoders.x.name=vector"):
        make_encoder(banner, "x", {})
    assert make_encoder(banner, "x", {"x": {"name": "vector"}}).width == 480


def test_names_of_leaves_that_there_are_not_are_errors():
    spec = SpaceSpec.of_tree({"camera": IMAGE}, 1)
    with pytest.raises(ConfigError, match=r"names the observation 'camra', which there is not; did you mean 'camera'"):
        Features(spec, {}, ["camra"], "policy.actor_observations")
    with pytest.raises(ConfigError, match=r"policy.encoders.arm names the observation 'arm'"):
        Features(spec, {"arm": {}}, None, "policy.actor_observations")
    with pytest.raises(ConfigError, match="one vector without names"):
        Features(SpaceSpec(3, 1), {}, ["camera"], "policy.actor_observations")


def test_a_wrong_encoder_is_found_before_any_simulator_is_made():
    check_encoders("policy.encoders", {"camera": {"name": "drq_cnn", "width": 64}})
    for chosen in ({"camera": "drq_cnn"}, {"camera": {"name": "resnet"}}, {"camera": {"name": "drq_cnn", "depth": 1}}):
        with pytest.raises(ConfigError, match=r"policy\.encoders\.camera"):
            check_encoders("policy.encoders", chosen)
    assert shipped("policies.encoders") == ["drq_cnn", "impala_cnn", "one_hot", "vector"]
