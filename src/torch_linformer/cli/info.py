"""``linformer info``."""

from torch_linformer.cli.options import Debug, Model


def info(model: Model, debug: Debug = False) -> None:
    """Describe a model folder."""
    import json
    from pathlib import Path

    from torch_linformer.opening.summary import attention_of, summarize
    from torch_linformer.reporting.screen import Screen
    from torch_linformer.reporting.tables import format_scores
    from torch_linformer.tasks.headlines import HEADLINES

    found = summarize(model)
    config = found.config.encoder if found.config.is_encoder_decoder else found.config
    length = f"{config.max_position_embeddings:,} tokens"
    rows = [
        ("class", found.model_class),
        ("parameters", f"{found.parameters:,}"),
        ("attention", attention_of(config).removesuffix(" attention")),
        ("longest input", length if config.longest_input else f"any, learnt on {length}"),
        ("layers", f"{config.num_hidden_layers} of width {config.hidden_size}, {config.num_attention_heads} heads"),
        ("tokenizer", "none" if found.vocabulary is None else f"{found.vocabulary:,} tokens"),
    ]
    if found.config.is_encoder_decoder:
        decoder = found.config.decoder
        rows.insert(4, ("longest target", f"{decoder.max_position_embeddings:,} tokens"))
        rows.insert(6, ("layers of the decoder", f"{decoder.num_hidden_layers}, {attention_of(decoder)}"))
    if "Classification" in found.model_class and config.problem_type != "regression":
        labels = config.label_names
        rows.append(("labels", ", ".join(labels[:20]) + (f", … ({len(labels)})" if len(labels) > 20 else "")))
    metrics = Path(model) / "metrics.json"
    if metrics.is_file():
        scores = json.loads(metrics.read_text(encoding="utf-8"))
        names = dict.fromkeys(name for headline in HEADLINES.values() for name in headline)
        known = {name: scores[name] for name in names if scores.get(name) is not None}  # an infinite perplexity is null
        rows.extend((f"held-out {name}", value) for name, value in format_scores(known).items())
    Screen().table(model, ("", ""), rows)
