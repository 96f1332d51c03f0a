import pytest
import torch
from encoders.families import TEXTS, inputs_of, random_model
from peft import LoraConfig, PeftModel, get_peft_model, inject_adapter_in_model
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from torch_linformer.encoders import linearize
from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.nn import LinformerAttention


def test_lora_trains_merges_and_loads(model, batch, tmp_path):
    model.save_pretrained(tmp_path / "base")
    frozen = {name: value.clone() for name, value in model.state_dict().items()}
    lora = LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "out_proj"], task_type="SEQ_CLS")
    adapted = get_peft_model(model, lora)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert len([name for name in trained if "lora_" in name]) == 2 * 4 * 2, "A and B of four maps in two layers"
    assert all("lora_" in name or "classifier" in name for name in trained)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    before = adapted(**batch).loss.item()
    for _ in range(30):
        loss = adapted(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < before / 2
    adapted.eval()
    expected = adapted(**batch).logits.detach()
    adapted.save_pretrained(tmp_path / "adapter")

    base = LinformerForSequenceClassification.from_pretrained(tmp_path / "base")
    assert_close(dict(base.state_dict()), frozen, rtol=0, atol=0)
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert_close(loaded(**batch).logits, expected)
    merged = loaded.merge_and_unload()
    assert type(merged) is LinformerForSequenceClassification
    assert_close(merged(**batch).logits, expected)
    merged.save_pretrained(tmp_path / "merged")
    again = LinformerForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert_close(again(**batch).logits, expected)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"lora_bias": True}], ids=str)
@torch.no_grad()
def test_adapters_take_part_in_either_order_of_the_products(options):
    """One E for all heads is compressed before the adapted maps; the same E given to each head apart, after them."""
    outputs, mask = [], torch.arange(91) >= torch.tensor([[91], [40]])
    weights = torch.randn(2, 97, 3, dtype=torch.float64)
    x = torch.randn(2, 91, 12, dtype=torch.float64)
    for sharing in ("headwise", "none"):
        attention = LinformerAttention(12, 4, 97, 3, sharing=sharing, dtype=torch.float64)
        inject_adapter_in_model(LoraConfig(r=2, target_modules=["k_proj", "v_proj"], **options), attention)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in attention.named_parameters():
            if name.startswith("context.proj_"):
                parameter.copy_(weights[0 if name.startswith("context.proj_k") else 1])
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        outputs.append(attention(x, x, x, mask)[0])
    assert_close(*outputs)


def test_lora_on_a_linear_encoder(tmp_path):
    """Beside the slots, which are trained whole and saved with the adapter."""
    base = linearize(random_model(BertForSequenceClassification, TEXTS[0].config, torch.float32), k=7, window=6)
    base.save_pretrained(tmp_path / "base")
    lora = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["linformer"], task_type="SEQ_CLS")
    adapted = get_peft_model(base, lora)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert len([name for name in trained if "lora_" in name]) == 2 * 2 * 2, "A and B of two maps in two layers"
    assert len([name for name in trained if ".linformer." in name]) == 2 * 4
    batch = {**inputs_of(TEXTS[0]), "labels": torch.tensor([0, 1])}
    optimizer = torch.optim.AdamW([x for x in adapted.parameters() if x.requires_grad], lr=1e-2)
    for _ in range(5):
        adapted(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = adapted.eval()(**batch).logits.detach()
    adapted.save_pretrained(tmp_path / "adapter")
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(opened, tmp_path / "adapter").eval()
    assert_close(loaded(**batch).logits, expected)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(base)
    assert_close(merged(**batch).logits, expected)
