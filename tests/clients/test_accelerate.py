import torch
from accelerate import Accelerator
from torch.testing import assert_close
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding


def test_a_training_loop(model, tokenizer, examples, batch, tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(examples, batch_size=8, collate_fn=DataCollatorWithPadding(tokenizer))
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    before = prepared(**batch).loss.item()
    for _ in range(4):
        for rows in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**rows).loss)
                optimizer.step()
                optimizer.zero_grad()
    after = prepared(**batch).loss.item()
    assert after < before / 2
    accelerator.save_state(tmp_path)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(tmp_path)
    assert_close(dict(model.state_dict()), weights, rtol=0, atol=0)
