"""A case: a module, the rows of a batch with their padding, and how they are handed over. It prints as its own call."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import row_alone
import torch

from torch_linformer import nn

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LENGTH_OF_NO_ROWS = 3  # positions of a batch without rows


def padding_of(rows):
    """Bool ``(B, N)``, True at padding, of rows written as runs: ``"2. 3x"`` is 2 positions of padding and 3 tokens."""
    marks = ["".join(run[-1] * int(run[:-1]) for run in row.split()) for row in rows]
    if not marks:
        return torch.zeros(0, LENGTH_OF_NO_ROWS, dtype=torch.bool)
    return torch.tensor([[mark == "." for mark in row] for row in marks], dtype=torch.bool)


@dataclass(frozen=True)
class Case:
    """A call of a module of ``torch_linformer.nn``.

    Attributes:
        module: its class.
        options: the arguments it is built with.
        rows: what it reads, each row as runs of padding and tokens: see :func:`padding_of`.
        mask: ``bool``; ``needed`` for None where nothing is padding; or the number that is padding in a float mask, and
            its dtype.
        fill: what stands at padding.
        unbatched: the one row is handed over without a batch.
        seed: of the parameters and tokens.
        scores: a factor on the learned queries of slots chosen by the input, and
        steepness: what is added to the logarithms of how steep their priors are.
    """

    module: str
    options: dict[str, Any]
    rows: tuple[str, ...]
    mask: str = "bool"
    fill: str = "nan"
    unbatched: bool = False
    seed: int = 0
    scores: float = 1.0
    steepness: float = 0.0

    @property
    def causal(self):
        return self.options.get("causal", False)

    def turned(self):
        """The same rows from the last to the first."""
        return replace(self, rows=self.rows[::-1])

    @property
    def is_smooth(self):
        """Whether a rounding changes gradients a little: it may turn a maximum or a ReLU round."""
        return self.options.get("projection") != "max" and self.options.get("activation") != "relu"

    @property
    def padding(self):
        return padding_of(self.rows)

    def build(self):
        """The module in float64, no parameter of which is at a special value; E and F are random from the first."""
        torch.manual_seed(self.seed)
        module = getattr(nn, self.module)(**self.options, dtype=torch.float64)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if not name.endswith(("proj_k.weight", "proj_v.weight", "projection.weight")):
                    parameter.normal_(1.5 if name.endswith("log_time") else 0.0, 0.5)
            for projection in module.modules():
                if isinstance(projection, nn.DynamicProjection):
                    projection.weight.normal_().mul_(self.scores)
                    projection.log_steepness.add_(self.steepness)
        return module

    def draw(self):
        """The tensors the module reads, ``(B, ·, C)`` by name, with ``fill`` at padding."""
        generator = torch.Generator(torch.get_default_device()).manual_seed(self.seed)
        tensors = {}
        for name, (rows, width) in self.sequences().items():
            padding = padding_of(rows)
            tokens = torch.randn(*padding.shape, width, generator=generator, dtype=torch.float64)
            tensors[name] = tokens.masked_fill(padding[..., None], float(self.fill)).requires_grad_()
        return tensors

    def definition(self, module, tensors):
        """The outputs of the real tokens of all rows, ``(tokens, C)``, each row alone by the definitions."""
        outputs = [self.of_row(module, tensors, row) for row in range(len(self.rows))]
        return torch.cat(outputs) if outputs else next(iter(tensors.values())).new_zeros(0, self.width)

    def gradients_of(self, output, module, tensors):
        """Gradients of a weighted sum of ``output``, by the name of the tensor or parameter."""
        wanted = {**tensors, **dict(module.named_parameters())}
        if not output.numel():
            return {name: torch.zeros_like(x) for name, x in wanted.items()}
        generator = torch.Generator(torch.get_default_device()).manual_seed(self.seed + 1)
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        found = torch.autograd.grad(output, list(wanted.values()), weights, retain_graph=True, materialize_grads=True)
        return dict(zip(wanted, found, strict=True))

    @property
    def width(self):
        return self.options["d_model"]

    def sequences(self):
        """Rows and width of each tensor that the module reads."""
        return {"x": (self.rows, self.width)}

    def call(self, module, tensors, columns=slice(None), pasts=None):
        """The module's output ``(B, N, C)`` for some columns of the rows."""
        raise NotImplementedError

    def of_row(self, module, tensors, row):
        """What :meth:`definition` is for one row."""
        raise NotImplementedError

    def mask_of(self, padding):
        """The mask as it is handed over."""
        if self.mask == "needed" and not padding.any():
            return None
        mask = padding
        if self.mask not in ("bool", "needed"):
            number, dtype = self.mask.split()
            lowest = torch.finfo(DTYPES[dtype]).min if number == "min" else float(number)
            mask = torch.zeros(padding.shape, dtype=torch.float64).masked_fill(padding, lowest).to(DTYPES[dtype])
        return mask[0] if self.unbatched else mask

    def to_layout(self, x):
        """``(B, N, C)`` as it is handed over."""
        if self.unbatched:
            return x.squeeze(0)
        return x if self.options.get("batch_first", True) else x.transpose(0, 1)

    def from_layout(self, x):
        """``(B, N, C)`` of what comes back."""
        if self.unbatched:
            return x.unsqueeze(0)
        return x if self.options.get("batch_first", True) else x.transpose(0, 1)


@dataclass(frozen=True)
class AttentionCase(Case):
    """``LinformerAttention``.

    Attributes:
        query: ``same``, ``view`` or ``copy`` of the sequence; ``another`` of the same rows, whose values are another
            one too; or ``cross``: as many queries as ``rows`` has tokens, reading ``memory``, and ``compressed``: the
            same in two calls.
        memory: rows of keys and values of ``cross`` and ``compressed``.
    """

    query: str = "same"
    memory: tuple[str, ...] = ()

    @property
    def width(self):
        return self.options["embed_dim"]

    @property
    def reads_memory(self):
        return self.query in ("cross", "compressed")

    def sequences(self):
        if self.query in ("same", "view", "copy"):
            return super().sequences()
        read = self.memory if self.reads_memory else self.rows
        widths = {"key": self.options.get("kdim"), "value": self.options.get("vdim")}
        others = {name: (read, width or self.width) for name, width in widths.items()}
        return {"query": (self.rows, self.width), **others}

    def call(self, module, tensors, columns=slice(None), pasts=None, **more):
        query, key, value = (self.to_layout(x[:, columns]) for x in self.sources(tensors))
        if self.query in ("same", "view"):
            key = value = query
            query = key.view_as(key) if self.query == "view" else key
        mask = self.mask_of(padding_of(self.memory) if self.reads_memory else self.padding[:, columns])
        past = {} if pasts is None else {"past": pasts[0]}
        read = (module.compress(key, value, mask),) if self.query == "compressed" else (key, value, mask)
        output, weights = module(query, *read, **past, **more)
        return (self.from_layout(output), weights) if more else self.from_layout(output)

    def sources(self, tensors):
        if "x" not in tensors:
            return tensors["query"], tensors["key"], tensors["value"]
        x = tensors["x"]
        return x.clone() if self.query == "copy" else x, x, x

    def of_row(self, module, tensors, row):
        return self.output_and_weights(module, tensors, row)[0]

    def output_and_weights(self, module, tensors, row):
        real = ~self.padding[row]
        read = ~padding_of(self.memory)[row] if self.reads_memory else real
        query, key, value = self.sources(tensors)
        rows = query[row, real], key[row, read], value[row, read]
        return row_alone.causal_attention(module, *rows) if self.causal else row_alone.attention(module, *rows)


@dataclass(frozen=True)
class EncoderCase(Case):
    """``LinformerEncoder``, or its layer."""

    def call(self, module, tensors, columns=slice(None), pasts=None):
        mask = self.mask_of(self.padding[:, columns])
        stacked = self.module == "LinformerEncoder"
        past = {} if pasts is None else {"pasts": pasts} if stacked else {"past": pasts[0]}
        return self.from_layout(module(self.to_layout(tensors["x"][:, columns]), src_key_padding_mask=mask, **past))

    def of_row(self, module, tensors, row):
        define = row_alone.encoder if self.module == "LinformerEncoder" else row_alone.encoder_layer
        return define(module, tensors["x"][row, ~self.padding[row]])


@dataclass(frozen=True)
class DecoderCase(Case):
    """``LinformerDecoder``, or its layer; ``memory`` has the rows of what it reads beside its target."""

    memory: tuple[str, ...] = ()
    causal: ClassVar[bool] = True

    def turned(self):
        return replace(super().turned(), memory=self.memory[::-1])

    def sequences(self):
        return {**super().sequences(), "memory": (self.memory, self.options.get("memory_dim") or self.width)}

    def call(self, module, tensors, columns=slice(None), pasts=None):
        target = self.to_layout(tensors["x"][:, columns])
        memory, memory_mask = self.to_layout(tensors["memory"]), self.mask_of(padding_of(self.memory))
        masks = {"tgt_key_padding_mask": self.mask_of(self.padding[:, columns])}
        if pasts is None:
            masks["memory_key_padding_mask"] = memory_mask
        else:  # as a generation reads it
            memory = module.compress(memory, memory_mask)
            masks |= {"pasts": pasts} if self.module == "LinformerDecoder" else {"past": pasts[0]}
        return self.from_layout(module(target, memory, **masks))

    def of_row(self, module, tensors, row):
        define = row_alone.decoder if self.module == "LinformerDecoder" else row_alone.decoder_layer
        return define(
            module, tensors["x"][row, ~self.padding[row]], tensors["memory"][row, ~padding_of(self.memory)[row]]
        )
