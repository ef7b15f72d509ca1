"""Writes a tiny vision-language model with random weights into a folder, to try ``policy.name=vla`` anywhere.

    python docs/make_tiny_vla.py FOLDER [smolvlm|qwen2_vl] [float32|bfloat16]

It has every file that a real one has, and knows nothing: about 90,000 parameters and 320 words.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

KINDS = ("smolvlm", "qwen2_vl")
WORDS = ["what", "action", "should", "the", "robot", "take", "to", "complete", "task", "user", "assistant", "?", ":"]
SPECIAL = {
    "smolvlm": ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"],
    "qwen2_vl": ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>"],
}
IMAGE = {"smolvlm": "<image>", "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>"}
VOCABULARY = 320
SPREAD = 0.1
"""Deviation of the weights, larger than usual, so that so small a model tells images apart."""
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": SPREAD,
    "bos_token_id": 0,
    "pad_token_id": 0,
}


def make_tiny_vla(folder: Path, kind: str = "smolvlm", dtype: str = "float32", seed: int = 0) -> Path:
    """Writes model, tokenizer and processor; returns the folder.

    Args:
        folder: folder to write, created if missing.
        kind: one of ``KINDS``.
        dtype: ``float32`` or ``bfloat16``.
        seed: of the weights.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    _write_tokenizer(folder, kind)
    _write_processor(folder, kind)
    (_smolvlm() if kind == "smolvlm" else _qwen2_vl()).to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path, kind: str) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = SPECIAL[kind]
    vocabulary = {word: index for index, word in enumerate(["<unk>", *special, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<unk>", eos_token=special[-1],
        additional_special_tokens=special,
    ).save_pretrained(folder)  # fmt: skip


def _write_processor(folder: Path, kind: str) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    if kind == "smolvlm":
        edge = {"longest_edge": 32}
        images = SmolVLMImageProcessorPil(do_image_splitting=False, size=edge, max_image_size=edge)
        options = {"processor_class": "SmolVLMProcessor", "image_seq_len": 4}
    else:
        pixels = {"shortest_edge": 32 * 32, "longest_edge": 32 * 32}
        images = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, temporal_patch_size=2, size=pixels)
        options = {"processor_class": "Qwen2VLProcessor"}
    images.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(options))
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}user: {% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}" + IMAGE[kind] + "{% else %}{{ part['text'] }}{% endif %}{% endfor %} "
        "{{ eos_token }} {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )


def _smolvlm():  # noqa: ANN202 - importing the type takes seconds
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 8, "initializer_range": SPREAD}  # fmt: skip
    text = {"model_type": "llama", "eos_token_id": 4, **TEXT}
    config = SmolVLMConfig(
        vision_config=vision, text_config=text, image_token_id=1, scale_factor=2, tie_word_embeddings=True
    )
    return SmolVLMForConditionalGeneration(config)


def _qwen2_vl():  # noqa: ANN202 - importing the type takes seconds
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2, "num_heads": 2, "patch_size": 8,
              "spatial_merge_size": 2, "temporal_patch_size": 2, "initializer_range": SPREAD}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 2, 2]}
    text = {"eos_token_id": 5, "rope_parameters": rope, **TEXT}
    config = Qwen2VLConfig(
        vision_config=vision, text_config=text, image_token_id=1, video_token_id=2, vision_start_token_id=3,
        vision_end_token_id=4, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen2VLForConditionalGeneration(config)


if __name__ == "__main__":
    made = make_tiny_vla(Path(sys.argv[1]), *sys.argv[2:4])
    print(f"{made} holds {', '.join(sorted(file.name for file in made.iterdir()))}")
