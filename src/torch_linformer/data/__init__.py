"""From files to windows of token ids: reading, tokenizers, windows, packing."""
