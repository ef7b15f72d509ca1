"""A perceptron on the CPU: forward and backward pass written out, with oneDNN's products.

torch itself multiplies float32 matrices on the CPU with MKL, which uses AVX2 on processors of other makers than Intel.
oneDNN, which torch brings as well, uses AVX-512 wherever there is any, and applies the nonlinearity while a product is
still in the cache; torch's own tanh takes as long as a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

LEAST_MULTIPLICATIONS = 2**23
"""Size of a perceptron's largest product from which this way is clearly the faster one."""
_LEAST_OF_PRODUCT = 2**21
"""Size of a product from which oneDNN is faster than MKL; each of its calls costs ten microseconds more."""
_HAS_ONEDNN = (
    torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
)
_ACTIVATIONS = {"tanh": torch.tanh_, "relu": torch.relu_}


def suits(x: Tensor, weights: Sequence[Tensor], activation: str) -> bool:
    """Returns True if ``perceptron`` can compute this, and faster than torch's own layers.

    The answer depends on shapes, types and devices alone, so that equal runs round alike.

    Args:
        x: inputs.
        weights: [O, I] of each layer.
        activation: name of the nonlinearity.
    """
    return (
        not torch.compiler.is_compiling()  # which fuses by itself, and must not fix the number of rows
        and _HAS_ONEDNN
        and activation in _ACTIVATIONS
        and x.dim() == 2
        and x.device.type == weights[0].device.type == "cpu"
        and x.dtype == weights[0].dtype == torch.float32
        and len(x) * max(weight.numel() for weight in weights) >= LEAST_MULTIPLICATIONS
        and not torch.is_autocast_enabled("cpu")
    )


def perceptron(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str) -> Tensor:
    """[B, O] outputs of linear layers with a nonlinearity between them. Can be differentiated once.

    Args:
        x: [B, I] inputs.
        weights: [O, I] of each layer.
        biases: [O] of each layer.
        activation: ``tanh`` or ``relu``.
    """
    outputs: Tensor = _Perceptron.apply(x, activation, *weights, *biases)  # type: ignore[no-untyped-call]
    return outputs


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 2
        weights, biases = parameters[:layers], parameters[layers:]
        inputs = [x.contiguous()]  # with gaps between the rows, oneDNN is a hundred times slower
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(_product(inputs[-1], weight, bias, activation))
        ctx.activation = activation
        ctx.save_for_backward(*weights, *inputs)
        return _product(inputs[-1], weights[-1], biases[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: gradient checkpointing computes them anew and drops them
        layers = len(saved) // 2
        weights, inputs = saved[:layers], saved[layers:]
        needs_x, _, *needs = ctx.needs_input_grad
        grads: list[Tensor | None] = [None] * (2 * layers)
        grad = grad.contiguous()
        for layer in reversed(range(layers)):
            if needs[layer]:
                grads[layer] = _product(grad.t(), inputs[layer].t())
            if needs[layers + layer]:
                grads[layers + layer] = grad.sum(0)
            if layer or needs_x:
                grad = _product(grad, weights[layer].t())
            if layer:
                grad = _activation_gradient(grad, inputs[layer], ctx.activation)
        return (grad if needs_x else None, None, *grads)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    """[B, O] ``activation(x weight^T + bias)``."""
    if len(x) * weight.numel() >= _LEAST_OF_PRODUCT:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation or "none", [], "")
        return result
    result = functional.linear(x, weight, bias)
    return result if activation is None else _ACTIVATIONS[activation](result)


def _activation_gradient(grad: Tensor, outputs: Tensor, activation: str) -> Tensor:
    """Gradient before the nonlinearity, whose derivative follows from its outputs."""
    if activation == "tanh":
        before: Tensor = torch.ops.aten.tanh_backward(grad, outputs)
    else:
        before = torch.ops.aten.threshold_backward(grad, outputs, 0)
    return before
