import copy

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_


def test_int8_linear_layers_keep_the_answers(model, batch):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(20):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        exact = model(**batch).logits
        quantized = copy.deepcopy(model)
        quantize_(quantized, Int8DynamicActivationInt8WeightConfig())
        rounded = quantized(**batch).logits
    assert type(quantized.linformer.encoder.layers[0].self_attn.q_proj.weight) is not torch.nn.Parameter
    lost = (exact.argmax(-1) == batch["labels"]).float().mean() - (rounded.argmax(-1) == batch["labels"]).float().mean()
    spread = (rounded - exact).abs().max() / exact.abs().max()
    print(f"int8: accuracy lost {lost.item():.4f}, largest error of a logit {spread.item():.4f} of the largest logit")
    assert abs(lost) <= 0.02 and 0 < spread < 0.1
