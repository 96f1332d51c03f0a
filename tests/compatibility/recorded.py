"""What is recorded of a model or a module, and how it is compared with the record."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

import torch_linformer

HERE = Path(__file__).parent
SAVED = HERE / "saved"  # a folder a kind of model, as save_pretrained left it
RUNS = HERE / "runs"  # folders as the command line left them, and the documents they were made of
EXPECTED = HERE / "expected"  # inputs and outputs of each folder
MODULES = HERE / "modules.safetensors"  # outputs of the modules in module_cases.py
STATE_DICTS = HERE / "state_dicts.json"  # their parameters and buffers, and the shapes of these
FLOAT64 = {"rtol": 1e-9, "atol": 1e-11}
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}  # losses, and sinusoids, are computed in float32 in every model
OUTPUTS = ("last_hidden_state", "encoder_last_hidden_state", "logits", "start_logits", "end_logits")


def at_real_tokens(output: Tensor, mask: Tensor | None) -> Tensor:
    """``output`` with zeros at padding, where it may be anything; one that has no sequence as it is."""
    if mask is None or output.shape[:2] != mask.shape:
        return output
    return output.masked_fill((mask == 0).view(*mask.shape, *[1] * (output.dim() - 2)), 0.0)


def weighted_sum(output: Tensor, *dim: int) -> Tensor:
    """A sum that every element takes part in with a weight of its own, over all of ``output`` or over ``dim``."""
    return (output * torch.arange(output.numel(), dtype=output.dtype).cos().view_as(output)).sum(dim or None)


def gradients_of(total: Tensor, module: nn.Module, *tensors: Tensor) -> Tensor:
    """A weighted sum of the gradient to each tensor, and to each parameter in the order of their names."""
    parameters = [parameter for _, parameter in sorted(module.named_parameters()) if parameter.requires_grad]
    gradients = torch.autograd.grad(total, [*tensors, *parameters], allow_unused=True)
    return torch.stack([total.new_zeros(()) if each is None else weighted_sum(each) for each in gradients])


def open_model(folder: Path) -> nn.Module:
    """The model of a folder in float64, without dropout."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (class_name,) = config["architectures"]
    dropout = {name: 0.0 for name in ("hidden_dropout_prob", "attention_probs_dropout_prob") if name in config}
    return getattr(torch_linformer, class_name).from_pretrained(folder, dtype=torch.float64, **dropout)


def record_model(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs and loss in inference, gradients in training, and five generated tokens where the model generates.

    A vector is recorded as one number: a weighted sum of its channels.
    """
    with torch.no_grad():
        outputs = _outputs(model.eval(), inputs)
    outputs = {name: weighted_sum(each, -1) if each.dim() == 3 else each for name, each in outputs.items()}
    trained = _outputs(model.train(), inputs)
    outputs["gradients"] = gradients_of(sum(weighted_sum(trained[name]) for name in OUTPUTS if name in trained), model)
    if model.can_generate():
        prompt = {"input_ids": inputs["input_ids"][:, :5]}
        outputs["generated"] = model.eval().generate(**prompt, max_new_tokens=5, do_sample=False, eos_token_id=None)
    return {name: output.detach().contiguous() for name, output in outputs.items()}


def _outputs(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    found = model(**inputs)
    source, target = inputs.get("attention_mask"), inputs.get("decoder_attention_mask")
    outputs = {}
    for name in OUTPUTS:
        if found.get(name) is not None:
            mask = target if target is not None and name == "logits" else source
            outputs[name] = at_real_tokens(found[name], mask)
    return outputs if found.get("loss") is None else {**outputs, "loss": found.loss}
