"""How many tokens a Linformer reads at once: asked of a configuration, and of its file where nothing imports torch."""

from typing import Any


def longest_input(config: Any) -> int | None:
    """Tokens that a model with this configuration can read at once; None if there is no limit."""
    unlimited = config.causal and config.position_embedding != "learned"
    return None if unlimited else config.max_position_embeddings
