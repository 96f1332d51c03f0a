"""How many kernels a call launches on a GPU: counted on a CPU, as operations that PyTorch dispatches, without views."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel

from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.nn import LinformerAttention

pytestmark = pytest.mark.cpu("kernels are counted there")
VIEWS = {
    "view",
    "t",
    "transpose",
    "expand",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "permute",
    "_unsafe_view",
    "detach",
    "alias",
    "as_strided",
    "split",
    "split_with_sizes",
    "unbind",
    "reshape",
    "_reshape_alias",
    "chunk",
    "unflatten",
}
SIZES = {
    "vocab_size": 97,
    "hidden_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "max_position_embeddings": 256,
}
PADDING = torch.arange(256) >= torch.tensor([[256], [200]])
MOST = {  # forward, and forward with backward of gradients that are added to others
    ("attention", False): (9, 38),
    ("attention", True): (18, 47),
    ("model", False): (104, 411),
    ("model", True): (139, 453),
    ("means and a window", False): (260, 645),
    ("means and a window", True): (166, 558),
}


class Kernels(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names[function.overloadpacket._qualified_op_name.split("::")[1]] += 1
        return function(*args, **(kwargs or {}))


def kernels_of(call):
    with Kernels() as kernels:
        call()
    return sum(number for name, number in kernels.names.items() if name not in VIEWS)


def calls(name, masked):
    """A function that computes the output, of a module that has gradients already."""
    torch.manual_seed(0)
    if name == "attention":
        module, x = LinformerAttention(96, 4, 256, 32), torch.randn(2, 256, 96)

        def call():
            return module(x, key_padding_mask=PADDING if masked else None)[0]
    else:
        options = {"k": 32} if name == "model" else {"k": 32, "projection": "mean", "window": 32}
        of_bert = name == "BERT"
        module = BertModel(BertConfig(**SIZES)) if of_bert else LinformerModel(LinformerConfig(**SIZES, **options))
        module.eval()
        ids, mask = torch.randint(5, 90, (2, 256)), (~PADDING).long() if masked else None

        def call():
            return module(input_ids=ids, attention_mask=mask)[0]

    call().sum().backward()
    return call


@pytest.mark.parametrize(("name", "masked"), MOST, ids=str)
def test_a_call_launches_no_more_kernels_than_it_did(name, masked):
    call = calls(name, masked)
    with torch.no_grad():
        forward = kernels_of(call)
    training = kernels_of(lambda: call().sum().backward())
    most = MOST[name, masked]
    assert forward <= most[0] and training <= most[1], (forward, training)


def test_what_a_mask_says_is_worked_out_once_for_all_layers():
    """Padding costs an encoder of six layers at most two kernels a layer more, and what is paid once."""
    model = [calls("model", masked) for masked in (False, True)]
    bert = [calls("BERT", masked) for masked in (False, True)]
    with torch.no_grad():
        (plain, padded), of_bert = ([kernels_of(call) for call in each] for each in (model, bert))
    assert padded - plain <= 6 * 2 + 30
    assert padded - plain <= 1.25 * (of_bert[1] - of_bert[0])
