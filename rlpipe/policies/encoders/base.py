"""Interface of an encoder, and the encoder that a leaf has unless the configuration chooses another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlpipe.config.fields import check_fields
from rlpipe.config.sections import typed
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve
from rlpipe.trajectory import LeafSpec


@dataclass(frozen=True)
class EncoderConfig:
    """Base of every encoder's options."""

    name: str
    """``vector``, ``one_hot``, ``drq_cnn``, ``impala_cnn``, or ``package.module:Class``."""


class Encoder(ABC, nn.Module):
    """Encodes one leaf. A plug-in has a ``Config`` and is made as ``Encoder(config, leaf)``.

    Attributes:
        width: number of outputs.
    """

    Config: ClassVar[type[Any]] = EncoderConfig
    width: int

    @classmethod
    @abstractmethod
    def misfit(cls, leaf: LeafSpec) -> str | None:
        """Returns what the encoder needs, where a leaf is something else; None if it fits."""

    @abstractmethod
    def forward(self, values: Tensor) -> Tensor:
        """[B, width] float32 of [B, *shape] values in the leaf's own dtype."""


SMALLEST_PICTURE = 17
"""Height or width, in pixels, from which an image is encoded by convolutions unless the configuration chooses
otherwise. A smaller one is mostly a map whose cells hold categories, such as MiniGrid's."""


def default_name(leaf: LeafSpec) -> str:
    """Returns the name of the encoder that a leaf has unless the configuration chooses one."""
    if leaf.choices is not None:
        return "one_hot"
    return "drq_cnn" if leaf.is_image and max(leaf.shape[:2]) >= SMALLEST_PICTURE else "vector"


def make_encoder(leaf: LeafSpec, name: str, encoders: Mapping[str, Any]) -> Encoder:
    """Makes the encoder of a leaf, given the value of ``policy.encoders``.

    Raises:
        ConfigError: there is no such encoder or option, or it does not fit the leaf.
    """
    key = f"policy.encoders.{name}"
    options = {"name": default_name(leaf), **encoders.get(name, {})}
    plugin = resolve("policies.encoders", options["name"], f"{key}.name")
    needed = plugin.misfit(leaf)
    if needed is not None:
        kind = f"{leaf.dtype} {list(leaf.shape)}" + ("" if leaf.choices is None else ", a choice")
        usual = default_name(leaf)
        remedy = f"Leave the key out for {usual}." if usual != options["name"] else f"Take another: {key}.name=vector."
        raise ConfigError(
            f"{key} is {options['name']}, which needs {needed}, but the observation {name} is {kind}. {remedy}"
        )
    encoder: Encoder = plugin(_options(plugin, options, key), leaf)
    return encoder


def _options(plugin: Any, options: Mapping[str, Any], key: str) -> Any:
    """Builds the options of an encoder, complete, typed and checked."""
    config = typed(plugin.Config, dict(options), key)
    check_fields(config, key)
    return config


def check_encoders(key: str, encoders: Mapping[str, Any]) -> None:
    """Checks what can be checked of ``policy.encoders`` before the observations are known.

    Raises:
        ConfigError: it is no mapping of mappings, or an encoder or one of its options does not exist.
    """
    for leaf, options in encoders.items():
        if not isinstance(options, Mapping) or not isinstance(options.get("name", ""), str):
            raise ConfigError(
                f"{key}.{leaf} is {options!r}; it must hold keys and values, such as {key}.{leaf}.name=drq_cnn."
            )
        if "name" in options:
            place = f"{key}.{leaf}"
            _options(resolve("policies.encoders", options["name"], f"{place}.name"), options, place)


def scaled(images: Tensor) -> Tensor:
    """[B, channels, height, width] between -0.5 and 0.5 of [B, height, width, channels] bytes; of depth, metres."""
    planes = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return planes / 255.0 - 0.5 if images.dtype == torch.uint8 else planes / 1000.0


def too_small(leaf: LeafSpec, least: int) -> str | None:
    """Returns what an encoder of images needs, where a leaf is no image or has too few pixels; None if it fits."""
    if leaf.is_image and min(leaf.shape[:2]) >= least:
        return None
    return f"a uint8 image [height, width, channels], or int16 depth, of at least {least} x {least} pixels"
