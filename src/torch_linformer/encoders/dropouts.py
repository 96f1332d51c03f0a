"""Dropouts in the configuration of an encoder of transformers, whatever its family calls them."""

from typing import Any, Literal

Place = Literal["states", "attention"]
NAMES: dict[Place, tuple[str, ...]] = {
    "states": (
        "hidden_dropout_prob",
        "hidden_dropout",
        "dropout",
        "embedding_dropout",
        "mlp_dropout",
        "activation_dropout",
        "esm_input_dropout",
    ),
    "attention": ("attention_probs_dropout_prob", "attention_dropout"),
}


def dropout_of(config: Any, place: Place) -> float:
    """The largest dropout of hidden states, or of the weights of attention."""
    return max((value for name in NAMES[place] if (value := getattr(config, name, None))), default=0.0)


def set_dropout(config: Any, place: Place, value: float) -> None:
    """Let every dropout of a place be ``value``; a model that is built already keeps its own."""
    for name in NAMES[place]:
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
