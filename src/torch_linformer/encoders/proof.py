"""What a linear copy of an encoder is compared with before it is handed over: the encoder itself."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from torch_linformer.encoders.attentions import Reached, base_of, evaluating, example_inputs, run, stop
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.encoder_context import EncoderContext, check_length
from torch_linformer.encoders.positions import UNLIMITED, Positions

TOKENS = 16  # of a row; more where there are local windows
ROUNDING = {  # of all layers: the difference over the output, both as root mean squares
    torch.float64: 1e-6,  # rotary positions are float32
    torch.float32: 1e-4,  # roundings of 6e-8, which add up over layers, and steep weights multiply them
    torch.float16: 0.02,  # of 5e-4, likewise
    torch.bfloat16: 0.1,  # of 4e-3, likewise
}
LONGEST_CHECKED = 1 << 16  # tokens of the row that is only embedded, where no table ends


@torch.no_grad()
def prove(original: PreTrainedModel, linear: LinearEncoder) -> None:
    """Compare a linear copy with its original, where every row is read exactly, and embed one row of its full length.

    A vector of a text that is read off its padding (SigLIP's, off the last position) is noted in the configuration.

    Raises:
        ValueError: they differ by more than rounding, one of them cannot be run, or attends otherwise than it seems.
    """
    bases = [base_of(original), base_of(linear)]
    contexts = {name: x for name, x in bases[1].named_modules() if isinstance(x, EncoderContext)}
    windows = [x.window for x in contexts.values() if x.is_local and x.window]
    longest, is_text = linear.config.longest_input, bases[0].main_input_name == "input_ids"
    usual = Positions.said_by(linear.config).usual
    length = min(longest, usual, TOKENS + max([getattr(original.config, "sliding_window", None) or 0, *windows]))
    inputs: dict[str, Any] = dict(example_inputs(bases[0], length, rows=2))
    mask = torch.ones(0)
    if is_text:
        mask = torch.ones_like(inputs["input_ids"])
        mask[1, length - length // 4 :] = 0
        padding = getattr(original.config, "pad_token_id", None) or 0
        inputs |= {"input_ids": inputs["input_ids"].masked_fill(mask == 0, padding), "attention_mask": mask}
    dtypes = {x.dtype for x in linear.parameters()}  # those of quantized weights have the largest rounding
    dtypes |= {torch.bfloat16} if torch.is_autocast_enabled(linear.device.type) else set()
    dtypes |= {torch.float16} if torch.get_float32_matmul_precision() != "highest" else set()  # TF32's
    allowed = max(ROUNDING.get(dtype, ROUNDING[torch.bfloat16]) for dtype in dtypes)
    with _read_exactly(contexts) as were_run:
        tensors = [_tensors(_output(base, inputs)) for base in bases]
        idle = sorted(contexts.keys() - were_run.keys())
        if idle:
            raise ValueError(f"{idle[0]} is not what this model attends by: it cannot be replaced")
        if bases[0].main_input_name == "pixel_values":  # of one size; sounds have any
            check_length(max(were_run.values()), longest)
        if not tensors[0]:
            raise ValueError("its output has no numbers that could be compared")
        numbers = [[_real(x, mask) for x in side] for side in tensors]
        if not all(x.isfinite().all() for x in numbers[0]):
            raise ValueError(
                "the output for a small made-up input is not finite: some weights are not, or are too large for their "
                "dtype"
            )
        error = max(map(_difference, *numbers))
        if not error <= allowed:
            raise ValueError(
                f"a linear copy that reads every row exactly differs from it by {error:.2g} of its output, first in "
                f"{_first_difference(bases, inputs, mask, allowed)}: it attends otherwise than its configuration and "
                "its masks say"
            )
    vectors = zip(*([x for x in side if x.dim() == 2] for side in tensors), strict=True)
    if any(not _difference(*pair) <= allowed for pair in vectors):
        linear.config.linformer = {**(linear.config.linformer or {}), "reads_padding": True}
    if is_text and (Positions.said_by(linear.config).tables or longest <= LONGEST_CHECKED):
        with ExitStack() as hooks, evaluating(linear), suppress(Reached):
            for name in linear.config.attentions:
                hook = bases[1].get_submodule(name).register_forward_pre_hook(stop)
                hooks.callback(hook.remove)
            run(bases[1], example_inputs(bases[0], longest), f"a made-up input of {longest:,} tokens")


def _output(base: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    with evaluating(base):
        return run(base, inputs)


def _tensors(output: Any) -> list[Tensor]:
    """The numbers in an output, and in its parts."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() and output.dim() > 0 else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return [x for part in parts for x in _tensors(part)]


def _real(output: Tensor, mask: Tensor) -> Tensor:
    """The numbers of an output that padding is no part of: real tokens, and else the full row."""
    return output[mask == 1] if len(mask) and output.shape[: mask.dim()] == mask.shape else output[:1]


def _difference(original: Tensor, linear: Tensor) -> float:
    if original.shape != linear.shape:
        return float("inf")
    error, size = ((x.double().square().mean().sqrt().item()) for x in (linear - original, original))
    return error / size if size else error


@contextmanager
def _read_exactly(contexts: dict[str, EncoderContext]) -> Iterator[dict[str, int]]:
    """Meanwhile every row is short; the positions that each context has read since, by its name."""
    were_run: dict[str, int] = {}
    before = {context: (context.max_len, context.exact_below) for context in contexts.values()}
    with ExitStack() as hooks:
        for name, context in contexts.items():
            hook = context.register_forward_pre_hook(
                lambda module, args, name=name: were_run.update({name: args[1].shape[2]})
            )
            hooks.callback(hook.remove)
        for context in before:
            context.max_len = UNLIMITED
            context.exact_below = 0 if context.is_local else UNLIMITED
        try:
            yield were_run
        finally:
            for context, (max_len, exact_below) in before.items():
                context.max_len, context.exact_below = max_len, exact_below


def _first_difference(bases: list[PreTrainedModel], inputs: dict[str, Any], mask: Tensor, allowed: float) -> str:
    """The name of the first module that both have and whose outputs differ."""
    outputs: list[dict[str, list[Tensor]]] = [{}, {}]
    with ExitStack() as hooks:
        for base, seen in zip(bases, outputs, strict=True):
            for name, module in base.named_modules():

                def note(module: nn.Module, args: Any, output: Any, name: str = name, seen: Any = seen) -> None:
                    seen.setdefault(name, [_real(x, mask) for x in _tensors(output)])

                hooks.callback(module.register_forward_hook(note).remove)
            _output(base, inputs)
    for name, tensors in outputs[0].items():
        if any(not _difference(*pair) <= allowed for pair in zip(tensors, outputs[1].get(name, []), strict=False)):
            return name or "its output"
    return "its output"
