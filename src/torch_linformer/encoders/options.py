"""What a linear encoder attends to, as its configuration keeps it."""

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from torch_linformer.functional.causal import check_window
from torch_linformer.nn.options import AttentionConfig, check_choice, default_k

Projection = Literal["dynamic", "mean"]
COST_OF_SLOTS = 640  # in tokens that a query could see instead, beside its products with slots and window


def default_exact_below(k: int, window: int | None) -> int:
    """Tokens up to which attention to all of them takes less time than slots and window, about."""
    return 2 * k + (window or 0) + COST_OF_SLOTS


@dataclass(frozen=True, kw_only=True)
class LinearOptions:
    """What the attentions of a linear encoder attend to, in one softmax.

    Attributes:
        k: slots K, min(256, max_length / 4) by default; 0 for only the window and the first and last tokens.
        window: also the tokens at most ``window // 2`` positions away; None for only slots.
        exact_first, exact_last: numbers of first and last tokens, to which every token attends (``[CLS]``, ``[SEP]``).
        exact_below: a row of at most this many real tokens attends to all of them; 2 K + window + 640 if None, about
            where slots and window begin to take less time: N · (2 K + window) products beside N², and what choosing
            slots costs, as measured on CPUs with and without matrix tiles (docs/log.md).
        projection: slots chosen by the input (``dynamic``), with a learned mass, or ``mean`` of equal segments.
        max_length: tokens that the encoder reads at once.

    Raises:
        ValueError: for a number out of range.
    """

    k: int = None  # type: ignore[assignment]  # a number once it is made
    window: int | None = 128
    exact_first: int = 1
    exact_last: int = 1
    exact_below: int | None = None
    projection: Projection = "dynamic"
    max_length: int = 512

    def __post_init__(self) -> None:
        if self.k is None and type(self.max_length) is int:
            object.__setattr__(self, "k", default_k(self.max_length))  # the record is frozen
        for name in ("max_length", "k", "window", "exact_first", "exact_last", "exact_below"):
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name in ("window", "exact_below")):
                raise ValueError(f"{name} must be a whole number, got {value!r}")
        if self.exact_below is None:
            object.__setattr__(self, "exact_below", default_exact_below(self.k, self.window))
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
            raise ValueError("k=0 leaves only the window, and without a window nothing is left to attend to")

    def local(self, reach: int) -> "LinearOptions":
        """Those of a layer whose queries see the positions at most ``reach`` away, and nothing else."""
        return replace(self, k=0, window=max(2 * reach, 1), exact_first=0, exact_last=0, exact_below=0)

    @property
    def longest_exact(self) -> int:
        """Tokens of the longest row that attends to all of its tokens."""
        return cast(int, self.exact_below)

    @property
    def uses_slots(self) -> bool:
        """Whether there is a row that is read by slots and window, and not exactly."""
        return self.longest_exact < self.max_length

    def of_attention(self) -> AttentionConfig:
        """The same for one attention of :mod:`torch_linformer.nn`."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in ("window", "exact_first", "exact_last")}
        if self.k > 0:
            dynamic = self.projection == "dynamic"
            chosen |= {"projection": self.projection, "slot_mass": "learned" if dynamic else "fixed"}
            chosen |= {"sharing": "kv_per_head"} if dynamic else {}
        return AttentionConfig(**chosen)
