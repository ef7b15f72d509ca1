"""Stand-ins for policies that rlpipe does not have: one sees camera images, one decodes actions as tokens.

Plain torch modules of the usual shapes. They show what such an update would cost a device, not what rlpipe costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIONS, BINS, DECODED = 8, 256, 7


@dataclass(frozen=True)
class Camera:
    """Sizes of a camera policy: ``images`` of ``pixels`` x ``pixels`` in an update."""

    images: int
    pixels: int
    epochs: int = 4
    minibatches: int = 8


@dataclass(frozen=True)
class Tokens:
    """Sizes of a token policy: ``sequences`` of ``prefix`` tokens, after which seven are decoded."""

    sequences: int
    prefix: int
    width: int
    layers: int
    heads: int


class CameraPolicy(nn.Module):
    """Three convolutions and a layer of 512 (Mnih et al. 2015), with a Gaussian actor and a critic on top."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        size = self.encoder(torch.zeros(1, 3, pixels, pixels)).shape[1]
        self.trunk = nn.Sequential(nn.Linear(size, 512), nn.ReLU())
        self.mean, self.value = nn.Linear(512, ACTIONS), nn.Linear(512, 1)
        self.log_std = nn.Parameter(torch.full((ACTIONS,), -0.5))

    def forward(self, images: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """[B] log-probabilities of the actions (less a constant) and [B] values of uint8 images [B, 3, H, W]."""
        features = self.trunk(self.encoder(images.float() / 255.0))
        distance = (actions - self.mean(features).float()) / self.log_std.exp()
        return -(0.5 * distance.square() + self.log_std).sum(-1), self.value(features).float().squeeze(-1)


def clipped_loss(log_probs: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """PPO's clipped surrogate."""
    ratio = (log_probs - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


def camera_update(
    sizes: Camera, device: str, precision: str, *, compiled: bool
) -> tuple[Callable[[], Any], int, nn.Module]:
    """An update: the uint8 batch goes to the device once, then four passes in shuffled minibatches.

    Returns:
        The update, its number of images, and the policy.
    """
    policy = CameraPolicy(sizes.pixels).to(device)
    forward = torch.compile(policy) if compiled else policy
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.0, fused=True)
    batch = [
        torch.randint(256, (sizes.images, 3, sizes.pixels, sizes.pixels), dtype=torch.uint8),
        torch.randn(sizes.images, ACTIONS),
        *torch.randn(3, sizes.images),
    ]
    enabled = precision == "bfloat16"

    def update() -> None:
        moved = [column.to(device) for column in batch]
        for _ in range(sizes.epochs):
            for chosen in torch.randperm(sizes.images, device=device).chunk(sizes.minibatches):
                images, actions, old, advantages, returns = (column[chosen] for column in moved)
                with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=enabled):
                    log_probs, values = forward(images, actions)
                loss = clipped_loss(log_probs, old, advantages) + 0.5 * (values - returns).square().mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()

    return update, sizes.images, policy


class Block(nn.Module):
    """Pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, L, width] outputs, and the keys and values so far. With a past, L is 1."""
        batch, length, width = x.shape
        split = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        if past is not None:
            keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=past is None)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x)), (keys, values)


class TokenPolicy(nn.Module):
    """Transformer that reads a prefix of embeddings and decodes one token for each number of an action."""

    def __init__(self, sizes: Tokens) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BINS, sizes.width)
        self.position = nn.Parameter(0.02 * torch.randn(sizes.prefix + DECODED, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.head = nn.Sequential(nn.LayerNorm(sizes.width), nn.Linear(sizes.width, BINS))

    def forward(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """[B, 7, bins] logits of given tokens [B, 7] after a prefix [B, P, width]."""
        x = torch.cat([prefix, self.embedding(tokens[:, :-1])], 1)
        x = x + self.position[: x.shape[1]]
        for block in self.blocks:
            x, _ = block(x)
        return self.head(x[:, -DECODED:])

    def decode(self, prefix: Tensor) -> Tensor:
        """[B, 7] sampled tokens; keys and values of earlier tokens are kept."""
        x, past, tokens = prefix + self.position[: prefix.shape[1]], [None] * len(self.blocks), []
        for place in range(prefix.shape[1], prefix.shape[1] + DECODED):
            for index, block in enumerate(self.blocks):
                x, past[index] = block(x, past[index])
            chosen = torch.distributions.Categorical(logits=self.head(x[:, -1]).float()).sample()
            tokens.append(chosen)
            x = (self.embedding(chosen) + self.position[place])[:, None]
        return torch.stack(tokens, 1)


def decode_tokens(sizes: Tokens, device: str, precision: str) -> tuple[Callable[[], Any], int, nn.Module]:
    """Acting: seven tokens for each sequence, whose prefix comes from the host.

    Returns:
        The step, its number of sequences, and the policy.
    """
    policy = TokenPolicy(sizes).to(device)
    prefix = torch.randn(sizes.sequences, sizes.prefix, sizes.width)
    kind, enabled = torch.device(device).type, precision == "bfloat16"

    def act() -> Tensor:
        with torch.inference_mode(), torch.autocast(kind, torch.bfloat16, enabled=enabled):
            return policy.decode(prefix.to(device)).cpu()

    return act, sizes.sequences, policy


def token_update(
    sizes: Tokens, device: str, precision: str, *, compiled: bool
) -> tuple[Callable[[], Any], int, nn.Module]:
    """One optimiser step on decoded actions: the log-probabilities of all seven tokens in one pass.

    Returns:
        The step, its number of sequences, and the policy.
    """
    policy = TokenPolicy(sizes).to(device)
    forward = torch.compile(policy) if compiled else policy
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.0, fused=True)
    batch = [
        torch.randn(sizes.sequences, sizes.prefix, sizes.width),
        torch.randint(BINS, (sizes.sequences, DECODED)),
        *torch.randn(2, sizes.sequences),
    ]
    enabled = precision == "bfloat16"

    def step() -> None:
        prefix, tokens, old, advantages = (column.to(device) for column in batch)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=enabled):
            logits = forward(prefix, tokens)
        log_probs = logits.float().log_softmax(-1).gather(-1, tokens[..., None]).sum((1, 2))
        loss = clipped_loss(log_probs, old, advantages)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()

    return step, sizes.sequences, policy
