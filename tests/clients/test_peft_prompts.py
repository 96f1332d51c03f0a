"""PEFT's learned prompts: prompt tuning in front of every text; prefixes of keys and values are refused."""

import pytest
import torch
from peft import PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch.testing import assert_close

from torch_linformer.models import LinformerConfig, LinformerForCausalLM, LinformerForSequenceClassification

# PEFT asks transformers' models by an older name, and warns of the positions that every generate gives it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Position ids are not supported:UserWarning"),
]


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
