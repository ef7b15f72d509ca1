"""Vision-language models from a local folder in Hugging Face's format, as the trunk of a policy.

``transformers`` and ``peft`` are imported only where a model is made, because that takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest

PACKAGES = ("transformers", "safetensors", "peft")
DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16}
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685).

    Attributes:
        rank: r, of the two matrices that are trained beside each weight.
        alpha: their product is scaled by ``alpha / rank``.
        targets: ends of the names of the layers that get one, or ``all-linear``.
    """

    rank: int
    alpha: float = 16.0
    targets: list[str] | str = ALL_LINEAR


def check_adapters(key: str, value: Any) -> None:
    """Raises ConfigError if an option of adapters is unknown or has no legal value; none at all is no adapters."""
    if value:
        parse_adapters(value, key)


def parse_adapters(options: Mapping[str, Any], key: str = "policy.adapters") -> Adapters:
    """Returns checked options; see ``check_adapters``."""
    keys = list(Adapters.__dataclass_fields__)
    for name in options:
        if name not in keys:
            raise ConfigError(f"unknown key {key}.{name}{nearest(str(name), keys)} Known keys: {', '.join(keys)}.")
    rank, alpha, targets = options.get("rank"), options.get("alpha", 16.0), options.get("targets", ALL_LINEAR)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ConfigError(f"{key}.rank is {rank!r}; it must be an integer, at least 1.")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or alpha <= 0:
        raise ConfigError(f"{key}.alpha is {alpha!r}; it must be a number greater than 0.")
    names = isinstance(targets, list) and targets and all(isinstance(name, str) for name in targets)
    if not (names or targets == ALL_LINEAR):
        raise ConfigError(f"{key}.targets is {targets!r}; it must be {ALL_LINEAR} or a list of names of layers.")
    return Adapters(rank, float(alpha), targets)


@dataclass(frozen=True)
class VisionLanguageModel:
    """Parts of an image-text-to-text model.

    Attributes:
        trunk: everything up to the last hidden state.
        output: layer that turns a hidden state into the logits of the vocabulary.
        hidden_size: H, width of a hidden state.
        vocabulary: V, number of rows of the output layer.
        slot_std: deviation of the first weights of new embeddings.
    """

    trunk: Any
    output: nn.Linear
    hidden_size: int
    vocabulary: int
    slot_std: float


def load_model(folder: Path, dtype: str) -> VisionLanguageModel:
    """Reads a model, with dropout off; within ``torch.device("meta")`` only its shapes.

    Raises:
        ConfigError: it is not an image-text-to-text model, or its weights are not those of its configuration.
    """
    try:
        model, missing = _read_model(folder, dtype)
    except Exception as error:  # the library raises whatever its models raise
        raise ConfigError(
            f"policy.model is {folder}, which cannot be read as an image-text-to-text model: "
            f"{type(error).__name__}: {error}"
        ) from error
    if missing:
        names = ", ".join(missing[:5])
        raise ConfigError(
            f"policy.model is {folder}, whose files lack weights of the model, {len(missing)} in all: {names}."
        )
    output, text = model.get_output_embeddings(), model.config.get_text_config()
    if output is None or model.base_model is model:
        raise ConfigError(
            f"policy.model is {folder}, a {type(model).__name__}, which has no output layer apart from the rest: take "
            "another image-text-to-text model."
        )
    spread = getattr(text, "initializer_range", 0.02)
    return VisionLanguageModel(model.base_model.eval(), output, text.hidden_size, len(output.weight), spread)


def _read_model(folder: Path, dtype: str) -> tuple[Any, list[str]]:
    """Returns the stock model, and the names of the weights that the files lack."""
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if torch.get_default_device().type == "meta":
        return AutoModelForImageTextToText.from_config(config), []
    model, loading = AutoModelForImageTextToText.from_pretrained(
        folder, config=config, dtype=DTYPES[dtype], local_files_only=True, use_safetensors=True,
        output_loading_info=True,
    )  # fmt: skip
    return model, sorted(loading["missing_keys"])


def add_adapters(trunk: Any, adapters: Adapters) -> None:
    """Freezes a trunk and puts trainable low-rank adapters into it, if there are layers of these names."""
    from peft import LoraConfig, inject_adapter_in_model

    trunk.requires_grad_(False)
    options = LoraConfig(r=adapters.rank, lora_alpha=adapters.alpha, target_modules=adapters.targets)
    try:
        inject_adapter_in_model(options, trunk)
    except ValueError as error:
        linear = sorted({n.rpartition(".")[2] for n, module in trunk.named_modules() if isinstance(module, nn.Linear)})
        raise ConfigError(
            f"policy.adapters.targets is {adapters.targets}, but the model takes no adapters there: {error} Its linear "
            f"layers are {', '.join(linear)}."
        ) from error


def layers_of(trunk: nn.Module) -> list[nn.Module]:
    """Returns the layers of a trunk that may be computed again in the backward pass; adapters lie within them.

    transformers' own switch only works in training mode, which would also switch dropout on.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in trunk.modules() if isinstance(module, GradientCheckpointingLayer)]


class SlotEmbedding(nn.Module):
    """Embedding of a vocabulary of V ids, and of learned placeholders with the ids from V on.

    A placeholder stands where an action token is to be predicted, as in OpenVLA-OFT (Kim et al. 2025,
    arXiv:2502.19645), whose own differ by their position alone.
    """

    def __init__(self, words: nn.Module, vocabulary: int, slots: int, std: float) -> None:
        """Draws so many placeholders, with this deviation, from torch's global generator."""
        super().__init__()
        self.words = words
        self._first = vocabulary
        self.slots = nn.Parameter(torch.empty(slots, self.weight.shape[-1]))
        nn.init.normal_(self.slots, std=std)

    @property
    def weight(self) -> Tensor:
        """[V, H] embedding of the vocabulary, which some models ask for its dtype."""
        weight: Tensor = self.words.weight  # type: ignore[assignment]
        return weight

    def forward(self, ids: Tensor) -> Tensor:
        """[..., H] embeddings of ids [...]."""
        words: Tensor = self.words(ids.clamp(max=self._first - 1))
        slots = self.slots[(ids - self._first).clamp(min=0)].to(words.dtype)
        return torch.where((ids >= self._first).unsqueeze(-1), slots, words)


class Prompt(nn.Module):
    """Inputs of the model for images of one size and a fixed instruction; the text becomes tokens only once."""

    def __init__(self, folder: Path, instruction: str, image: tuple[int, ...], options: Mapping[str, Any]) -> None:
        """Reads the processor, whose options take the place of those in its file. The image is its shape.

        Raises:
            ConfigError: it cannot be read, or takes no such image.
        """
        super().__init__()
        try:
            with torch.device("cpu"):
                processor = _load_processor(folder)
                text = _prompt_text(processor, instruction)
                black = np.zeros(image, dtype=np.uint8)
                inputs = processor(text=[text], images=[[black]], return_tensors="pt", **options)
        except Exception as error:  # the library raises whatever its processors raise
            raise ConfigError(
                f"policy.model is {folder}, whose processor cannot be used with an instruction and an image of shape "
                f"{image}: {type(error).__name__}: {error}"
            ) from error
        self._images, self._options = processor.image_processor, dict(options)
        shape = inputs["input_ids"].shape
        self._of_text = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.shape == shape]
        self._of_image = [name for name in inputs if name not in self._of_text]
        for name in self._of_text:
            self.register_buffer(name, inputs[name][0], persistent=False)

    def extend(self, first: int, slots: int) -> None:
        """Puts placeholders with the ids ``first``, ``first + 1``, ... behind the text."""
        for name in self._of_text:
            text: Tensor = getattr(self, name)
            behind = text.new_full((slots,), 1 if name == "attention_mask" else 0)
            if name == "input_ids":
                behind = torch.arange(first, first + slots, device=text.device)
            setattr(self, name, torch.cat([text, behind]))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Inputs of the model by name, for images [B, height, width, 3] of bytes."""
        inputs = self._images([[image] for image in images.cpu().numpy()], return_tensors="pt", **self._options)
        of_text = {name: getattr(self, name).expand(len(images), -1) for name in self._of_text}
        return of_text | {name: inputs[name].to(images.device) for name in self._of_image}


def _prompt_text(processor: Any, instruction: str) -> str:
    """The instruction and the place of an image, in the words of the model's chat template if it has one."""
    template = processor.chat_template or processor.tokenizer.chat_template
    if template is None:
        return f"{processor.image_token}{instruction}"
    content = [{"type": "image"}, {"type": "text", "text": instruction}]
    text: str = processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], chat_template=template, add_generation_prompt=True, tokenize=False
    )
    return text


def _load_processor(folder: Path) -> Any:
    """Reads a processor without its part for videos, which needs torchvision.

    Images are always resized with Pillow, so that every machine rounds alike.
    """
    from transformers import AutoConfig
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    stock: Any = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(folder, local_files_only=True))]

    class ImageTextProcessor(stock):  # type: ignore[misc]
        """The model's processor for images and text."""

        @classmethod
        def get_attributes(cls) -> list[str]:
            return [name for name in super().get_attributes() if name != "video_processor"]

        @classmethod
        def _get_arguments_from_pretrained(cls, *args: Any, **kwargs: Any) -> list[Any]:
            arguments: list[Any] = super()._get_arguments_from_pretrained(*args, **kwargs)
            return [*arguments, None] if "video_processor" in stock.get_attributes() else arguments

    return ImageTextProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
