"""The choices of each option that has some, for modules, configurations and commands: of these none imports torch."""

from typing import Literal

FixedProjection = Literal["linear", "random", "conv", "mean", "max"]
Projection = Literal[FixedProjection, "dynamic"]
Sharing = Literal["none", "kv_per_head", "headwise", "kv", "layerwise"]
SlotMass = Literal["none", "fixed", "learned"]
ActivationMemory = Literal["none", "checkpoint", "reversible"]
AttentionKind = Literal["linformer", "full"]
PositionEmbedding = Literal["learned", "sinusoidal", "rotary", "none"]
Pooling = Literal["mean", "cls", "last", "max", "mean_max"]
