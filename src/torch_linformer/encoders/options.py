"""What a linear encoder attends to, as its configuration keeps it."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch_linformer.nn.options import DEFAULT_K, DEFAULTS, AttentionOptions, check_choice, check_window

Projection = Literal["dynamic", "mean"]
EXACT_BELOW = 384  # tokens up to which ordinary attention was not slower (docs/performance.md)


@dataclass(frozen=True, kw_only=True)
class LinearOptions:
    """What the attentions of a linear encoder attend to, in one softmax.

    Attributes:
        k: slots K; 0 for only the window and the exact tokens.
        window: also the tokens at most ``window // 2`` positions away; None for only slots.
        exact_first: the first tokens of a text, which every token sees themselves (``[CLS]``), and
        exact_last: the last ones (``[SEP]``).
        exact_below: a row of at most this many real tokens attends to all of them, as in the original.
        projection: slots chosen by the input (``dynamic``), with a learned mass, or ``mean``, of equal segments, which
            have nothing to learn.
        max_length: tokens that the encoder reads at once.

    Raises:
        ValueError: for a number out of range.
    """

    k: int = DEFAULT_K
    window: int | None = 128
    exact_first: int = 1
    exact_last: int = 1
    exact_below: int = EXACT_BELOW
    projection: Projection = "dynamic"
    max_length: int = 512

    def __post_init__(self) -> None:
        check_choice("projection", self.projection, Projection)
        check_window(self.window)
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        for name in ("k", "exact_first", "exact_last", "exact_below"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.k > self.max_length:
            raise ValueError(f"k must be at most the {self.max_length:,} tokens read at once, got {self.k}")
        if self.k == 0 and self.window is None:
            raise ValueError("k=0 leaves only the window, and window=None leaves nothing to attend to")

    def local(self, sliding_window: int) -> "LinearOptions":
        """Those of a layer whose queries see the positions fewer than ``sliding_window`` away, and nothing else."""
        return replace(self, k=0, window=2 * (sliding_window - 1), exact_first=0, exact_last=0, exact_below=0)

    def of_attention(self) -> AttentionOptions:
        """The same for one attention of :mod:`torch_linformer.nn`."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in ("window", "exact_first", "exact_last")}
        if self.k > 0:
            dynamic = self.projection == "dynamic"
            chosen |= {"projection": self.projection, "slot_mass": "learned" if dynamic else "fixed"}
            chosen |= {"sharing": "kv_per_head"} if dynamic else {}
        return AttentionOptions(**{**DEFAULTS, **chosen})  # type: ignore[typeddict-item]
