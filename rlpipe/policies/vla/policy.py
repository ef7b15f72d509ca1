"""A vision-language-action policy: a vision-language model from a local folder that gives its actions as tokens.

Bin i of a number is the id V - 1 - i of a vocabulary of V ids, as in OpenVLA (Kim et al. 2024, arXiv:2406.09246). All
tokens of a decision are decoded in parallel, at placeholders, as in OpenVLA-OFT (Kim et al. 2025, arXiv:2502.19645).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlpipe.config.fields import check_not_empty, check_path, option
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.policies.base import PolicyConfig, Weights, finite_bounds
from rlpipe.policies.shared.bins import BinnedActions, BinsConfig, drawn, taken_of
from rlpipe.policies.shared.parts import PartsPolicy
from rlpipe.policies.shared.perceptron import Head, perceptron
from rlpipe.policies.vla.model_folder import check_folder, digest
from rlpipe.policies.vla.vision_language import (
    DTYPES,
    PACKAGES,
    Prompt,
    SlotEmbedding,
    VisionLanguageModel,
    add_adapters,
    check_adapters,
    layers_of,
    load_model,
    parse_adapters,
)
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree

__all__ = ["VLAPolicy"]


@dataclass(frozen=True)
class VLAConfig(BinsConfig, PolicyConfig):
    """Options of the model and of the tokens. Needs ``pip install 'rlpipe[vla]'``; see docs/vla.md."""

    model: str = option("", checks=(check_not_empty, check_path), unit="folder")
    """Folder with a Hugging Face image-text-to-text model: ``config.json``, ``*.safetensors``, tokenizer and processor.
    It must be the same on every machine; nothing is downloaded."""
    instruction: str = option("What action should the robot take to complete the task?", checks=(check_not_empty,))
    """Text that the model reads beside the image, within its chat template."""
    camera: str | None = option(None)
    """Leaf of the observation that holds the image; None for the only image there is."""
    image_options: dict[str, Any] = option({})
    """Options of the model's image processor in place of those in its file: ``{do_image_splitting: false}``."""
    dtype: str = option("auto", choices=tuple(DTYPES))
    """Type of the model's weights; ``auto`` is that of the files. Learning always adds to float32 copies."""
    adapters: dict[str, Any] = option({}, checks=(check_adapters,))
    """Train low-rank adapters instead of the model: ``{rank: 8, alpha: 16, targets: [q_proj, v_proj]}``; without
    ``targets``, in all linear layers. Empty trains the whole model."""
    value_hidden_sizes: list[int] = option([256], least=1, unit="units")
    """Width of each hidden layer of the value function, which sees the last hidden state."""
    rows_per_pass: int = option(32, least=1, unit="images")
    """Images of a forward pass that needs no gradients; a larger request is cut. Gradients need the whole minibatch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model:  # workers run in folders of their own
            object.__setattr__(self, "model", str(Path(self.model).absolute()))


class VLAPolicy(BinnedActions, PartsPolicy):
    """Independent categorical distributions over the tokens of a decision, from the image and the instruction.

    The action head starts with the rows of the action tokens in the model's output layer, and the value function sees
    the hidden state of the last token before the placeholders.
    """

    Config = VLAConfig
    in_tokens = True
    from_files = True
    outside_torch = "Its model's own processor scales and normalises every picture with Pillow, outside of torch."

    def __init__(self, config: VLAConfig, spec: SpaceSpec) -> None:
        """Reads the model; draws what it lacks from torch's global generator.

        Within ``torch.device("meta")`` there are only shapes, and the files are not compared.

        Raises:
            ConfigError: packages, files or the camera are missing, or the actions are not continuous and bounded.
        """
        for package in PACKAGES:
            require(package, "vla", "policy.name=vla")
        low, high = finite_bounds(spec, "vla")
        camera, leaf = find_camera(spec, config.camera)
        folder = Path(config.model)
        check_folder(folder)
        super().__init__()
        self.spec, self.chunk_size = spec, config.chunk_size
        self._camera, self._rows_per_pass = camera, config.rows_per_pass
        self.prompt = Prompt(folder, config.instruction, leaf.shape, config.image_options)
        model = load_model(folder, config.dtype)
        self.prompt.extend(model.vocabulary, spec.action_dim)
        self.head = _action_head(model, config.bins)
        self._value_sizes = [model.hidden_size, *config.value_hidden_sizes]
        self.critic = perceptron([*self._value_sizes, 1], "silu", 1.0)
        self.trunk = model.trunk
        if config.adapters:
            add_adapters(self.trunk, parse_adapters(config.adapters))
        words = self.trunk.get_input_embeddings()
        slots = SlotEmbedding(words, model.vocabulary, spec.action_dim, model.slot_std)
        self.trunk.set_input_embeddings(slots)
        self.make_bins(low, high, config.bins, config.quantile)
        self._frozen = {name for name, each in self.named_parameters() if not each.requires_grad}
        if self.lowest.device.type != "meta":
            self.files_digest = digest(folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> VLAPolicy:
        """Copies what can change; frozen weights and the processor are shared with the copy."""
        parameters = dict(self.named_parameters())
        memo |= {id(parameters[name]): parameters[name] for name in self._frozen} | {id(self.prompt): self.prompt}
        copied = memo[id(self)] = self.__class__.__new__(self.__class__)
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def trained_state(self) -> dict[str, Tensor]:
        """Parameters that are not frozen, each once, and the bins."""
        learnt = {name: each.detach() for name, each in self.named_parameters() if name not in self._frozen}
        return learnt | {"lowest": self.lowest, "width": self.width}

    def acting_weights(self) -> Weights:
        return {name: array for name, array in self.weights().items() if not name.startswith("critic.")}

    def _hidden(self, observations: Tensor | Tree) -> Tensor:
        """[B, 1 + k * A, H] float32 last hidden states, from the last token before the placeholders on."""
        assert isinstance(observations, Tree)
        images = observations[self._camera]
        if not len(images):  # a learner's share of a minibatch; the model takes no empty batch
            return self._pass(images.new_zeros(1, *images.shape[1:]))[:0]
        rows = len(images) if torch.is_grad_enabled() else self._rows_per_pass
        return torch.cat([self._pass(piece) for piece in images.split(rows)])

    def _pass(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.trunk(**self.prompt(images), use_cache=False).last_hidden_state
        return hidden[:, -1 - self.spec.action_dim :].float()

    def _log_probs(self, observations: Tensor | Tree) -> Tensor:
        """[B, k * A, bins] log-probabilities of every token."""
        every: Tensor = self.head(self._hidden(observations)[:, 1:]).log_softmax(-1)
        return every

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        every = self._log_probs(observations)
        tokens = drawn(every, noise)
        return self.centres(tokens), self.by_action(taken_of(every, tokens))

    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        every = self._log_probs(observations)
        return taken_of(every, self.tokens(actions)), -(every.exp() * every).sum(-1)

    def value_each_action(self) -> None:
        self.critic = perceptron([*self._value_sizes, self.chunk_size], "silu", 1.0)

    def value(self, observations: Tensor | Tree) -> Tensor:
        values: Tensor = self.critic(self._hidden(observations)[:, 0]).squeeze(-1)
        return values

    def recomputed_modules(self) -> Iterator[nn.Module]:
        """Layers of the model, of its vision tower too.

        Raises:
            ConfigError: the model has none that transformers can compute again.
        """
        layers = layers_of(self.trunk)
        if not layers:
            raise ConfigError(
                f"policy.checkpoint_gradients is true, but the model is a {type(self.trunk).__name__}, whose layers "
                "transformers cannot compute again: set policy.checkpoint_gradients=false."
            )
        return itertools.chain(layers, (self.critic,))

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        critic = set(self.critic.parameters())
        return (each for name, each in self.named_parameters() if name not in self._frozen and each not in critic)

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        return self.critic.parameters()


def find_camera(spec: SpaceSpec, name: str | None) -> tuple[str, LeafSpec]:
    """Returns the name and the shape of the image that the policy sees: of a leaf, or without a name the only one.

    Raises:
        ConfigError: there is no such image, or the choice is not clear.
    """
    leaves = spec.leaves or {}
    images = {leaf: leaf_spec for leaf, leaf_spec in leaves.items() if _is_rgb(leaf_spec)}
    every = ", ".join(f"{leaf} {leaf_spec.dtype} {list(leaf_spec.shape)}" for leaf, leaf_spec in leaves.items())
    overview = f"There are {', '.join(images)}." if images else f"The leaves are {every or 'a bare vector'}."
    if not images:
        raise ConfigError(f"policy.name is vla, which needs an image of bytes [height, width, 3]. {overview}")
    if name is None and len(images) > 1:
        raise ConfigError(f"policy.camera is not given, but the observation has several images: name one. {overview}")
    camera = next(iter(images)) if name is None else name
    if camera not in images:
        what = "is not an image of bytes [height, width, 3]" if camera in leaves else "is not observed"
        raise ConfigError(f"policy.camera is {camera!r}, which {what}{nearest(camera, images)} {overview}")
    return camera, images[camera]


def _is_rgb(leaf: LeafSpec) -> bool:
    """True for bytes [height, width, 3]. Depth, in int16, is an image as well, but not one that a model has seen."""
    return leaf.is_image and leaf.dtype == "uint8" and leaf.shape[-1] == 3


def _action_head(model: VisionLanguageModel, bins: int) -> Head:
    """Layer that gives the logits of the bins, from the last rows of the model's output layer."""
    if bins > model.vocabulary:
        raise ConfigError(f"policy.bins is {bins}, but the model's vocabulary has {model.vocabulary} tokens.")
    output = model.output
    head = Head(model.hidden_size, bins, bias=output.bias is not None)
    with torch.no_grad():
        head.weight.copy_(output.weight[-bins:].flip(0))
        if output.bias is not None:
            head.bias.copy_(output.bias[-bins:].flip(0))
    return head
