"""The sizes of new models."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Dimensions of a model, and what training it from scratch asks for."""

    hidden_size: int
    layers: int
    heads: int
    feed_forward: int
    learning_rate: float
    dropout: float
    position_embedding: str


# `tiny` reads thousands of tokens a document on two CPU cores: one layer, whose E and F know positions themselves.
# `base` has the dimensions of RoBERTa-base, `large` those of RoBERTa-large.
SIZES = {
    "tiny": Size(128, 1, 4, 256, 3e-3, 0.3, "none"),
    "small": Size(384, 6, 6, 1536, 5e-4, 0.1, "learned"),
    "base": Size(768, 12, 12, 3072, 1e-4, 0.1, "learned"),
    "large": Size(1024, 24, 16, 4096, 5e-5, 0.1, "learned"),
}


def size_of_width(width: int) -> Size:
    """The size whose learning rate suits a model of that width: the widest that is no wider, or else the smallest."""
    fitting = [size for size in SIZES.values() if size.hidden_size <= width]
    return max(fitting, key=lambda size: size.hidden_size, default=SIZES["tiny"])
