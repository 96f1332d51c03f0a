"""Read a million tokens at once on a CPU: in chunks, with memory for the hidden states and hardly more.

Install: pip install "torch-linformer[hf]"
Run: python examples/lessons/million_tokens.py
With your own: python examples/lessons/million_tokens.py --file server.log
"""

import argparse
import resource
import time
from pathlib import Path

import torch

from shared import source_files
from torch_linformer import LinformerConfig, LinformerModel

parser = argparse.ArgumentParser()
parser.add_argument("--file", type=Path, help="a file to read, byte by byte  [Python's own source files]")
parser.add_argument("--tokens", type=int, default=1_048_576)
options = parser.parse_args()

# 1. The text. Bytes need no tokenizer: a token is a byte, and its number is the byte's and 4, after four special
# tokens.
own = options.file is not None
content = options.file.read_bytes() if own else b"".join(text.encode() for _, text in source_files())
ids = torch.tensor(list(content[: options.tokens]))[None] + 4
print("tokens:", ids.shape[1])

# 2. The model. Positions are sinusoidal, so no table has a row for each; slots are means of segments, so no matrix E
# has one either. With chunk_size the layers work on 8,192 tokens at a time in inference, and the result is the same.
config = LinformerConfig(
    vocab_size=260,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=options.tokens,
    position_embedding="sinusoidal",
    projection="mean",
    k=256,
    chunk_size=8192,
)
torch.manual_seed(0)
model = LinformerModel(config).eval()
print("parameters:", model.num_parameters())


def megabytes():
    """The most memory that this process has held so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


# 3. The same in chunks and at once, on a text that is short enough for both.
whole = LinformerModel(LinformerConfig(**{**config.to_dict(), "chunk_size": None})).eval()
whole.load_state_dict(model.state_dict())
with torch.inference_mode():
    some = ids[:, : min(16_384, options.tokens // 4)]
    difference = (model(some).last_hidden_state - whole(some).last_hidden_state).abs().max().item()
print("largest difference between chunks and all at once:", difference)

# 4. Twice the text, twice the time: look at the seconds a million tokens. Full attention takes four times as long
# each time.
with torch.inference_mode():
    length = options.tokens // 16
    while length <= options.tokens:
        begin = time.process_time()
        hidden = model(ids[:, :length]).last_hidden_state
        seconds = time.process_time() - begin
        print(f"{length:,} tokens, seconds of processor time: {seconds:.1f}")
        print(f"{length:,} tokens, seconds a million tokens: {1e6 * seconds / length:.1f}")
        print(f"{length:,} tokens, most memory so far in MB: {megabytes()}", flush=True)
        length *= 2
print("shape of the hidden states:", tuple(hidden.shape))
