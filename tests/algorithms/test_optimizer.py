"""Adam on parameters side by side: the steps, the norms and the saved state of torch's own Adam."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlpipe.algorithms.shared.optimizer import FlatAdam, clip_norm, flatten
from rlpipe.errors import ConfigError


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 33), nn.Tanh(), nn.Linear(33, 2))


def loss(net, step):
    return (net(torch.full((4, 3), 0.1 * step)) - 1.0).square().mean()


def test_parameters_become_views_and_keep_their_values():
    net = network()
    before = [parameter.clone() for parameter in net.parameters()]
    whole = flatten(net.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, net.parameters(), strict=True))
    whole.zero_()
    assert not any(parameter.any() for parameter in net.parameters())


def test_its_steps_and_its_state_are_those_of_torch():
    ours, theirs = network(), network()
    flat = FlatAdam(ours[0].parameters(), ours[2].parameters(), eps=1e-5)
    flat.set_options([0.1, 0.01])
    groups = [{"params": theirs[0].parameters(), "lr": 0.1}, {"params": theirs[2].parameters(), "lr": 0.01}]
    adam = torch.optim.Adam(groups, eps=1e-5, fused=True)
    for step in range(5):
        flat.step(flat.gradients(loss(ours, step)))
        adam.zero_grad()
        loss(theirs, step).backward()
        adam.step()
    for found, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    saved = flat.state()
    for index, kept in adam.state_dict()["state"].items():
        for name, value in kept.items():
            torch.testing.assert_close(saved[f"{index}/{name}"], value, rtol=1e-5, atol=1e-9)


def test_a_step_that_is_not_finite_is_left_out():
    net = network()
    flat = FlatAdam(net.parameters())
    flat.set_options([0.1])
    before = flat.groups[0].clone()
    flat.step(torch.full_like(before, torch.nan), torch.tensor(False))
    assert torch.equal(flat.groups[0], before)
    flat.step(torch.ones_like(before), torch.tensor(True))
    assert torch.allclose(flat.groups[0], before - 0.1, atol=1e-5)


def test_a_restored_optimiser_continues_to_the_last_bit():
    ours, again = network(), network()
    flat = FlatAdam(ours.parameters())
    flat.set_options([0.1])
    flat.step(flat.gradients(loss(ours, 1)))
    restored = FlatAdam(again.parameters())
    restored.set_options([0.1])
    again.load_state_dict(ours.state_dict())
    restored.load_state(flat.state())
    for net, adam in ((ours, flat), (again, restored)):
        adam.step(adam.gradients(loss(net, 2)))
    assert torch.equal(flat.groups[0], restored.groups[0])


def test_the_state_of_other_parameters_is_refused():
    flat = FlatAdam(network().parameters())
    with pytest.raises(ConfigError, match=r"exp_avg of shape \(7,\) does not fit parameter 1 of 4"):
        flat.load_state({"1/exp_avg": torch.zeros(7)})


def test_a_parameter_without_a_part_in_the_loss_stays_as_it_is():
    net = network()
    flat = FlatAdam(net.parameters())
    flat.set_options([0.1])
    bias = net[2].bias.clone()
    flat.step(flat.gradients(net[0](torch.ones(1, 3)).sum()))
    assert torch.equal(net[2].bias, bias)


def test_a_parameter_cannot_be_in_two_groups():
    net = network()
    with pytest.raises(ValueError, match="appears twice"):
        FlatAdam(net.parameters(), net[0].parameters())


def test_a_gradient_beyond_the_limit_is_scaled_down_to_it():
    gradient = torch.tensor([3.0, 4.0])
    assert clip_norm(gradient, 1.0).tolist() == 5.0
    assert torch.allclose(gradient, torch.tensor([0.6, 0.8]))
    assert clip_norm(gradient, None).tolist() == pytest.approx(1.0)
    assert torch.allclose(gradient, torch.tensor([0.6, 0.8]))


class TestBfloat16:
    def test_steps_below_its_precision_add_up(self):
        """Numbers below 1 are 2^-8 = 0.0039 apart, so a step of 0.001 alone would be rounded away."""
        weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        flat = FlatAdam([weight])
        flat.set_options([0.001])
        for _ in range(10):
            flat.step(torch.ones(1))
        assert weight.item() == 0.98828125  # 0.99, rounded
        assert flat.groups[0].item() == pytest.approx(0.99, abs=1e-5)

    def test_gradients_are_those_of_the_parameters_in_float32(self):
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        other = torch.nn.Parameter(torch.ones(1))
        gradient = FlatAdam([weight, other]).gradients((weight * 3).sum() + other.sum())
        assert gradient.dtype == torch.float32
        assert gradient.tolist() == [3, 3, 1]

    def test_a_restored_optimiser_continues_to_the_last_bit(self):
        ours, again = network().to(torch.bfloat16), network().to(torch.bfloat16)
        flat, restored = FlatAdam(ours.parameters()), FlatAdam(again.parameters())
        for adam in (flat, restored):
            adam.set_options([0.001])
        for _ in range(3):
            flat.step(torch.ones_like(flat.groups[0]))
        again.load_state_dict(ours.state_dict())
        restored.load_state(flat.state())
        assert torch.equal(flat.groups[0], restored.groups[0])
        assert not torch.equal(flat.groups[0], flat.groups[0].bfloat16().float())  # the masters hold more than the bits

    def test_weights_that_were_loaded_since_are_the_ones_that_move(self):
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        flat = FlatAdam([weight])
        flat.set_options([0.001])
        flat.step(torch.ones(2))
        with torch.no_grad():
            weight[0] = 4.0
        flat.step(torch.zeros(2), torch.tensor(False))
        assert flat.groups[0].tolist() == [4.0, pytest.approx(0.999, abs=1e-5)]
