"""Vision-language-action policies."""

from rlpipe.policies.vla.policy import VLAPolicy

__all__ = ["VLAPolicy"]
