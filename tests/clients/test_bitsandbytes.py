"""bitsandbytes: `load_in_8bit` and `load_in_4bit` of transformers quantise the linear maps."""

import pytest
import torch
from transformers import BitsAndBytesConfig

from torch_linformer import LinformerConfig, LinformerForCausalLM, LinformerForSequenceClassification

bitsandbytes = pytest.importorskip("bitsandbytes")

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "k": 16,
    "num_labels": 32,  # the kernels of 4 bits on a CPU want outputs in multiples of 32
}
CAUSAL = {"causal": True, "window": 8, "position_embedding": "rotary"}


@pytest.mark.parametrize(
    ("model_class", "options"),
    [(LinformerForSequenceClassification, {}), (LinformerForCausalLM, CAUSAL)],
    ids=["classification", "causal-lm"],
)
@pytest.mark.parametrize(
    ("bits", "kind", "tolerance"),
    [("8bit", bitsandbytes.nn.Linear8bitLt, 0.05), ("4bit", bitsandbytes.nn.Linear4bit, 0.4)],
)
def test_every_map_of_the_layers_is_quantised_and_scores_stay_near(
    tmp_path, model_class, options, bits, kind, tolerance
):
    torch.manual_seed(0)
    model = model_class(LinformerConfig(**SIZES, **options)).eval()
    model.save_pretrained(tmp_path)
    config = BitsAndBytesConfig(**{f"load_in_{bits}": True})
    quantised = model_class.from_pretrained(tmp_path, quantization_config=config)
    maps = [part for part in quantised.linformer.encoder.modules() if type(part) is kind]
    assert len(maps) == 12  # four of each attention, two of each feed-forward
    ids, mask = torch.randint(1, 128, (2, 40)), torch.ones(2, 40, dtype=torch.long)
    mask[1, 20:] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits[mask.any(-1)]
        actual = quantised(ids, attention_mask=mask).logits
    assert not torch.equal(actual, expected)
    assert (actual - expected).norm() < tolerance * expected.norm()
