"""A perceptron written out: the same values and gradients as torch's own layers and automatic differentiation."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from rlpipe.functional import perceptron as module
from rlpipe.functional.perceptron import LEAST_MULTIPLICATIONS, perceptron, suits

needs_onednn = pytest.mark.skipif(not module._HAS_ONEDNN, reason="this torch has no oneDNN")


def layer_by_layer(x, weights, biases, activation):
    """The same network out of torch's own functions."""
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = {"tanh": torch.tanh, "relu": torch.relu}[activation](functional.linear(x, weight, bias))
    return functional.linear(x, weights[-1], biases[-1])


def drawn(rows, sizes):
    """Inputs, weights and biases, all with gradients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, sizes[0], generator=generator).requires_grad_()
    weights = [
        (torch.randn(out, into, generator=generator) * into**-0.5).requires_grad_()
        for into, out in itertools.pairwise(sizes)
    ]
    return x, weights, [torch.randn(out, generator=generator).requires_grad_() for out in sizes[1:]]


def gradients(compute, x, weights, biases, activation):
    outputs = compute(x, weights, biases, activation)
    direction = torch.linspace(-1, 1, outputs.numel()).view_as(outputs)
    return outputs, torch.autograd.grad(outputs, (x, *weights, *biases), direction)


@needs_onednn
@settings(max_examples=40)
@given(
    st.integers(1, 9), st.lists(st.integers(1, 5), min_size=2, max_size=4), st.sampled_from(["tanh", "relu"]),
    st.booleans(),
)  # fmt: skip
def test_values_and_gradients_are_those_of_the_layers_one_by_one(rows, sizes, activation, small):
    drawing = drawn(rows, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST_OF_PRODUCT", 2**21 if small else 1)
        outputs, grads = gradients(perceptron, *drawing, activation)
    expected, expected_grads = gradients(layer_by_layer, *drawing, activation)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_real_sizes_differ_from_the_layers_one_by_one_by_rounding_alone(activation):
    drawing = drawn(400, [35, 256, 256, 256, 8])
    outputs, grads = gradients(perceptron, *drawing, activation)
    expected, expected_grads = gradients(layer_by_layer, *drawing, activation)
    assert (outputs - expected).abs().max() < 1e-5
    for found, wanted in zip(grads, expected_grads, strict=True):
        assert (found - wanted).norm() < 1e-5 * wanted.norm()


@needs_onednn
def test_observations_with_gaps_between_the_rows_give_the_same():
    x, weights, biases = drawn(4, [3, 2, 1])
    wide = torch.cat([x.detach(), torch.zeros(4, 2)], 1)[:, :3]
    assert torch.equal(perceptron(wide, weights, biases, "relu"), perceptron(x, weights, biases, "relu"))


@needs_onednn
def test_what_needs_no_gradient_gets_none():
    x, weights, biases = drawn(4, [3, 2, 1])
    weights[0].requires_grad_(False)
    perceptron(x.detach(), weights, biases, "tanh").sum().backward()
    assert x.grad is None
    assert weights[0].grad is None
    assert weights[1].grad.shape == weights[1].shape


def test_small_networks_and_other_types_keep_to_the_layers_of_torch():
    weight = torch.zeros(256, 256)
    rows = LEAST_MULTIPLICATIONS // 256**2
    assert suits(torch.zeros(rows, 256), [weight], "tanh") == module._HAS_ONEDNN
    assert not suits(torch.zeros(rows - 1, 256), [weight], "tanh")
    assert not suits(torch.zeros(rows, 256), [weight], "silu")
    assert not suits(torch.zeros(rows, 256).double(), [weight.double()], "tanh")
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits(torch.zeros(rows, 256), [weight], "tanh")


@needs_onednn
@pytest.mark.parametrize("threads", [2, 4])
def test_the_number_of_threads_does_not_change_a_single_bit(threads):
    drawing = drawn(400, [35, 256, 256, 8])
    alone = gradients(perceptron, *drawing, "tanh")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = gradients(perceptron, *drawing, "tanh")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone[0], together[0])
    assert all(torch.equal(*pair) for pair in zip(alone[1], together[1], strict=True))
