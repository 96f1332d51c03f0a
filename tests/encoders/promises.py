"""What `linearize` promises for any model of transformers: one that keeps all of this, or one line that refuses it."""

import functools
import inspect
import tempfile
from typing import Any

import pytest
import torch
import transformers
from encoders import every_model
from encoders.families import learned
from torch.utils._python_dispatch import TorchDispatchMode

from torch_linformer.encoders import linearize

OPTIONS: dict[str, Any] = {"k": 4, "window": 6}
ALL_EXACT = {**OPTIONS, "exact_below": 10_000}  # rows longer than any here
LENGTH, TOKENS = 24, 15  # of a full row, and of the padded one beside it
ROUNDING = 1e-5  # of the largest number; models are float64, some of their buffers float32
PRIME = 61  # tokens of a text that no other size is
UNLIMITED = 1 << 12  # positions from which on a model has no learned ones

Inputs = dict[str, Any]


def tensors(output: Any, name: str = "") -> dict[str, torch.Tensor]:
    """All numbers of an output, by their places in it."""
    if isinstance(output, torch.Tensor):
        return {name: output} if output.is_floating_point() else {}
    parts = (
        output.items() if isinstance(output, dict) else enumerate(output) if isinstance(output, (list, tuple)) else ()
    )
    return {place: x for key, value in parts for place, x in tensors(value, f"{name}.{key}".lstrip(".")).items()}


@torch.no_grad()
def run(model: Any, inputs: Inputs) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)  # some models draw numbers in evaluation mode too
    return tensors(model(**inputs))


def assert_same(outputs: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], mask: Any = None) -> None:
    """Equal up to rounding, where a mask says that a token is real."""
    assert outputs.keys() == expected.keys()
    for name, own in outputs.items():
        other = expected[name]
        assert own.shape == other.shape, f"{name}: {tuple(own.shape)}, expected {tuple(other.shape)}"
        if mask is not None and own.dim() > 1 and own.shape[1] == mask.shape[1]:
            own, other = own[mask == 1], other[mask == 1]
        real = other.isfinite()  # eager attention of padding alone is NaN in some families
        assert own[real].isfinite().all(), f"{name} is not finite"
        if real.any():
            off, largest = (own - other)[real].abs().max().item(), max(1.0, other[real].abs().max().item())
            assert off <= ROUNDING * largest, f"{name} is off by {off:.2g} of {largest:.2g}"


def padded(inputs: Inputs) -> Inputs:
    """The same with padding after the last row's text."""
    mask = torch.ones(inputs["input_ids"].shape, dtype=torch.long)
    mask[-1, TOKENS:] = 0
    return {**inputs, "attention_mask": mask}


def last_row(values: dict[str, Any]) -> dict[str, Any]:
    """Of a padded batch the row with padding, without it."""
    return {name: x[-1:, :TOKENS] if x.dim() > 1 and x.shape[1] == LENGTH else x[-1:] for name, x in values.items()}


def with_slots(model: Any) -> Any:
    """The linear model, no row read exactly, with slots that have learned something."""
    return learned(linearize(model, **OPTIONS, exact_below=0))


def is_the_original(model: Any, linear: Any, inputs: Inputs) -> None:
    """Where every row is read exactly."""
    assert_same(run(linear, inputs), run(model, inputs))
    if "input_ids" in inputs:
        batch = padded(inputs)
        expected = run(model, batch)
        if linear.config.linformer.get("reads_padding"):
            with pytest.raises(ValueError, match="of the last position, padding or not: give it no attention_mask"):
                run(linear, batch)
        else:
            assert_same(run(linear, batch), expected, batch["attention_mask"])


def owns_its_attentions(model: Any, linear: Any, inputs: Inputs) -> None:
    """None is left that transformers would hand to the means of segments."""
    left = [name for name, x in linear.named_modules() if looks_up_attention(type(x)) and not hasattr(x, "linformer")]
    assert not left, f"attentions without a context of their own: {left}"


@functools.cache
def looks_up_attention(kind: type) -> bool:
    try:
        return "ALL_ATTENTION_FUNCTIONS.get_interface" in inspect.getsource(kind.forward)
    except (TypeError, OSError, AttributeError):
        return False


def is_saved(model: Any, linear: Any, inputs: Inputs) -> None:
    with tempfile.TemporaryDirectory() as folder:
        linear.save_pretrained(folder)
        opened = transformers.AutoModel.from_pretrained(folder, dtype=linear.dtype)
    assert type(opened) is type(linear)
    assert_same(run(opened, inputs), run(linear, inputs))


def reads_its_length(model: Any, linear: Any, inputs: Inputs) -> None:
    """And refuses one token more, in one line with both numbers."""
    longest = linear.config.longest_input
    if "input_ids" not in inputs or longest > UNLIMITED:
        return
    run(linear, every_model.text_of(model, inputs, longest))
    try:
        run(linear, every_model.text_of(model, inputs, longest + 1))
    except ValueError as error:
        said = str(error)
        assert "\n" not in said and f"{longest:,}" in said and f"{longest + 1:,}" in said, said
    else:
        raise AssertionError(f"reads {longest + 1} tokens, and its longest input is {longest}")


def reads_more(model: Any, linear: Any, inputs: Inputs) -> None:
    longest = linear.config.longest_input
    if "input_ids" not in inputs or longest > UNLIMITED:
        return
    try:
        longer = linearize(model, **OPTIONS, max_length=2 * longest + 3)
    except ValueError as error:
        assert type(model).__name__ in str(error) and "\n" not in str(error)
        return
    outputs = run(longer, every_model.text_of(model, inputs, 2 * longest + 3))
    assert all(x.isfinite().all() for x in outputs.values())


def pads_without_effect(model: Any, linear: Any, inputs: Inputs) -> None:
    slots = with_slots(model)
    if "input_ids" not in inputs or slots.config.linformer.get("reads_padding"):
        run(slots, inputs)
        return
    batch = padded(inputs)
    alone = last_row(batch)
    try:
        assert_same(last_row(run(model, batch)), run(model, alone))
    except AssertionError:
        run(slots, batch)  # padding has an effect in the original: MobileBERT reads the tokens beside each
    else:
        assert_same(last_row(run(slots, batch)), run(slots, alone))


def learns_its_slots(model: Any, linear: Any, inputs: Inputs) -> None:
    """From where training begins: slots that are sure of a token each, 50 nats before any other, learn nothing."""
    torch.manual_seed(1)
    slots = linearize(model, **OPTIONS, exact_below=0)
    output = next(iter(tensors(slots(**inputs)).values()))
    (output * torch.randn_like(output)).sum().backward()
    gradients = {name: x.grad for name, x in slots.named_parameters() if ".linformer." in name}
    assert gradients, "it has no slots"
    left = [name for name, x in gradients.items() if x is None or not x.any() or not x.isfinite().all()]
    assert not left, f"no gradient reaches {left}"


class _Squares(TorchDispatchMode):
    """Notes the first operation whose result has the length of the text twice among its sizes."""

    first = ""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(x, torch.Tensor) and tuple(x.shape).count(PRIME) > 1:
                self.first = self.first or f"{function} {tuple(x.shape)}"
        return result


def is_linear(model: Any, linear: Any, inputs: Inputs) -> None:
    """Nothing has N × N numbers."""
    if "input_ids" in inputs:
        slots = with_slots(model)
        with _Squares() as squares:
            run(slots, every_model.text_of(model, inputs, PRIME))
        assert not squares.first


PROMISES = [
    owns_its_attentions,
    is_the_original,
    is_saved,
    reads_its_length,
    reads_more,
    pads_without_effect,
    learns_its_slots,
    is_linear,
]


def outcome(model: Any) -> str:
    """``works``, or the line that refuses a model; raises for anything else, with all that is broken."""
    kind = model.config.model_type
    try:
        linear = linearize(model, **ALL_EXACT)
    except (ValueError, TypeError) as error:
        said = str(error)
        names = type(model).__name__ in said or f"({kind})" in said
        if "\n" in said or not names:
            raise AssertionError(f"no line that names {type(model).__name__}: {said}") from error
        return said
    inputs = every_model.inputs_of(model, 2, LENGTH)
    broken = []
    for promise in PROMISES:
        try:
            promise(model, linear, inputs)
        except Exception as error:
            broken.append(f"{promise.__name__}: {type(error).__name__}: {error}")
    if broken:
        raise AssertionError("\n".join(broken))
    return "works"


def outcomes(model_type: str) -> dict[str, str]:
    """Of the model of a type, and of its encoder where it has a decoder too: ``""`` and ``get_encoder()``.

    Raises:
        every_model.NoModel: transformers has no model of this type here.
        AssertionError: it neither works nor is refused in one line.
    """
    results = attempt(model_type)
    if isinstance(results, Exception):
        raise results
    return dict(results)


@functools.cache
def attempt(model_type: str) -> dict[str, str] | Exception:
    try:
        model = every_model.tiny_model(model_type)
        results = {"": outcome(model)}
        encoder = model.get_encoder() if model.config.is_encoder_decoder else None
        if isinstance(encoder, transformers.PreTrainedModel) and encoder is not model:
            results["get_encoder()"] = outcome(encoder)
    except Exception as error:
        return error.with_traceback(None)
    return results
