"""``linformer info``."""

from torch_linformer.cli.options import Debug, Model


def info(model: Model, debug: Debug = False) -> None:
    """Describe a model folder."""
    import json
    from pathlib import Path

    from torch_linformer.training.folder import load_model, load_tokenizer, reader_config
    from torch_linformer.training.screen import Screen, attention_of, shown_scores
    from torch_linformer.training.tasks import TASKS

    loaded = load_model(model)
    # Imported weights come without one: not even its configuration is there.
    has_tokenizer = not Path(model).is_dir() or any(Path(model).glob("tokenizer*.json"))
    tokenizer = f"{len(load_tokenizer(model)):,} tokens" if has_tokenizer else "none"
    config = reader_config(loaded.config)
    length = f"{config.max_position_embeddings:,} tokens"
    rows = [
        ("class", type(loaded).__name__),
        ("parameters", f"{loaded.num_parameters():,}"),
        ("attention", attention_of(config).removesuffix(" attention")),
        ("longest input", length if config.longest_input else f"any, learnt on {length}"),
        ("layers", f"{config.num_hidden_layers} of width {config.hidden_size}, {config.num_attention_heads} heads"),
        ("tokenizer", tokenizer),
    ]
    if loaded.config.is_encoder_decoder:
        decoder = loaded.config.decoder
        rows.insert(4, ("longest target", f"{decoder.max_position_embeddings:,} tokens"))
        rows.insert(6, ("layers of the decoder", f"{decoder.num_hidden_layers}, {attention_of(decoder)}"))
    if "Classification" in type(loaded).__name__ and config.problem_type != "regression":
        labels = config.label_names
        rows.append(("labels", ", ".join(labels[:20]) + (f", … ({len(labels)})" if len(labels) > 20 else "")))
    metrics = Path(model) / "metrics.json"
    if metrics.is_file():
        scores = json.loads(metrics.read_text(encoding="utf-8"))
        names = dict.fromkeys(name for task in TASKS.values() for name in task.headline)
        known = {name: scores[name] for name in names if scores.get(name) is not None}  # an infinite perplexity is null
        rows.extend((f"held-out {name}", value) for name, value in shown_scores(known).items())
    Screen().table(model, ("", ""), rows)
