"""PEFT: LoRA, and learned prompts in front of every text; prefixes of keys and values are refused."""

import pytest
import torch
from encoders.families import TEXTS, inputs_of, random_model
from peft import (
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
    inject_adapter_in_model,
)
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from torch_linformer.encoders import linearize
from torch_linformer.models import LinformerConfig, LinformerForCausalLM, LinformerForSequenceClassification
from torch_linformer.nn import LinformerAttention

# PEFT asks transformers' models by an older name, and warns of the positions that every generate gives it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Position ids are not supported:UserWarning"),
]


def learn(model, batch, steps=30):
    """Train what may be trained; the loss before and after."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1]


def test_lora_trains_merges_and_loads(model, batch, tmp_path):
    model.save_pretrained(tmp_path / "base")
    frozen = {name: value.clone() for name, value in model.state_dict().items()}
    lora = LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "out_proj"], task_type="SEQ_CLS")
    adapted = get_peft_model(model, lora)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert len([name for name in trained if "lora_" in name]) == 2 * 4 * 2, "A and B of four maps in two layers"
    assert all("lora_" in name or "classifier" in name for name in trained)
    before, after = learn(adapted, batch)
    assert after < before / 2
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
    learn(adapted, batch, steps=5)
    expected = adapted.eval()(**batch).logits.detach()
    adapted.save_pretrained(tmp_path / "adapter")
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(opened, tmp_path / "adapter").eval()
    assert_close(loaded(**batch).logits, expected)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(base)
    assert_close(merged(**batch).logits, expected)


# Learned prompts


@pytest.fixture
def causal(config):
    torch.manual_seed(0)
    fields = {**config.to_diff_dict(), "causal": True, "window": 4, "position_embedding": "rotary", "eos_token_id": 3}
    return LinformerForCausalLM(LinformerConfig(**fields))


@pytest.fixture
def prompts(tokenizer, texts):
    """Four texts of different lengths, padded on the left."""
    tokenizer.padding_side = "left"
    encoded = tokenizer(texts[0][:4], padding=True, return_tensors="pt", return_token_type_ids=False)
    tokenizer.padding_side = "right"
    assert (encoded["attention_mask"] == 0).any()
    return dict(encoded)


def test_a_classifier_learns_a_prompt(model, batch, tmp_path):
    model.resize_max_len(40)  # the prompt needs a place too
    model.save_pretrained(tmp_path / "base")
    tuned = get_peft_model(model, PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=5))
    before, after = learn(tuned, batch)
    assert after < 0.7 * before
    tuned.eval()
    logits = tuned(**batch).logits.detach()
    tokens = int(batch["attention_mask"][0].sum())
    alone = tuned(input_ids=batch["input_ids"][:1, :tokens], attention_mask=torch.ones(1, tokens, dtype=torch.long))
    assert_close(alone.logits, logits[:1])
    tuned.save_pretrained(tmp_path / "prompt")
    base = LinformerForSequenceClassification.from_pretrained(tmp_path / "base")
    assert_close(PeftModel.from_pretrained(base, tmp_path / "prompt").eval()(**batch).logits, logits)


def test_a_language_model_learns_a_prompt_and_writes_after_it(causal, prompts):
    tuned = get_peft_model(causal, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5))
    labels = prompts["input_ids"].masked_fill(prompts["attention_mask"] == 0, -100)
    before, after = learn(tuned, {**prompts, "labels": labels})
    assert after < before
    tuned.eval()
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written = tuned.generate(**prompts, **options)
    assert written.shape == (4, prompts["input_ids"].shape[1] + 6)
    assert torch.equal(tuned.generate(**prompts, **options, use_cache=False), written)
    tokens = int(prompts["attention_mask"][0].sum())
    alone = tuned.generate(input_ids=prompts["input_ids"][:1, -tokens:], **options)
    assert torch.equal(alone[0, -6:], written[0, -6:])


def test_a_prefix_of_keys_and_values_is_refused(model, causal, batch, prompts):
    tuned = get_peft_model(causal, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5))
    message = "a LinformerCache, got DynamicCache: a prefix of keys and values .* take prompt tuning or LoRA"
    with pytest.raises(ValueError, match=message):
        tuned(**prompts)
    with pytest.raises(ValueError, match=message):
        tuned.generate(**prompts, max_new_tokens=2)
    classifier = get_peft_model(model, PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=5))
    with pytest.raises(ValueError, match=r"needs a causal model: .* prefix .* take prompt tuning or LoRA"):
        classifier(**batch)
