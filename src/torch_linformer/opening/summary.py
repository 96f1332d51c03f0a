"""What a model folder holds, in words."""

import json
from pathlib import Path
from typing import Any

from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.opening.load import load_model, load_tokenizer
from torch_linformer.reporting.tables import format_scores
from torch_linformer.tasks.headlines import HEADLINES


def attention_of(config: Any) -> str:
    """The attention of a model, in a few words; of an encoder-decoder, its encoder's."""
    config = config.encoder if config.is_encoder_decoder else config
    encoder = getattr(config, "backbone_config", None) or config
    if isinstance(encoder, LinearConfig) and encoder.linformer is not None:  # else it has ordinary attention
        linear, reaches = encoder.linear_options, [x.reach for x in encoder.attentions.values() if x.reach is not None]
        tokens = " or ".join(f"{2 * reach:,}" for reach in sorted(set(reaches)))
        k, options, sharing = linear.k, linear.of_attention(), ""
        others = [
            f"texts of at most {linear.exact_below:,} tokens exact" if linear.exact_below else "",
            f"{len(reaches)} of {len(encoder.attentions)} layers only a window of {tokens}" if reaches else "",
        ]
    elif config.attention == "full":
        return "causal full attention" if config.causal else "full attention"
    else:
        k, options, sharing, others = config.k, config, f"sharing {config.sharing}", []
    parts = [f"K {k}" if k else "no slots", "causal" if options.causal else ""]
    if k and not options.causal:
        dynamic, no_weights = options.projection == "dynamic", options.projection in ("mean", "max")
        parts += [
            "" if no_weights else sharing,  # heads and layers have nothing to share
            "slots chosen by the input" if dynamic else f"projection {options.projection}",
            "" if options.slot_mass == "none" else f"{options.slot_mass} mass",
        ]
    exact, window = _exact_tokens(options.exact_first, options.exact_last), options.window
    return ", ".join(filter(None, [*parts, exact, f"window {window}" if window else "", *others]))


def _exact_tokens(first: int, last: int) -> str:
    """The tokens that every token sees themselves."""
    ends = [(name, number) for name, number in (("first", first), ("last", last)) if number]
    named = " and ".join(f"{name} token" if number == 1 else f"{name} {number} tokens" for name, number in ends)
    return named and f"{named} exact"


def summary_rows(path: str) -> list[tuple[str, str]]:
    """What ``linformer info`` shows: name and value of each property of a model, and its scores if it has any."""
    model = load_model(path)
    whole: Any = model.config
    config = whole.encoder if whole.is_encoder_decoder else whole
    # Imported weights come without a tokenizer: not even its configuration is there.
    has_tokenizer = not Path(path).is_dir() or any(Path(path).glob("tokenizer*.json"))
    length = f"{config.longest_input or config.max_position_embeddings:,} tokens"
    rows = [
        ("class", type(model).__name__),
        ("parameters", f"{model.num_parameters():,}"),
        ("attention", attention_of(config).removesuffix(" attention")),
        ("longest input", length if config.longest_input else f"any, trained on {length}"),
        ("layers", f"{config.num_hidden_layers} of width {config.hidden_size}, {config.num_attention_heads} heads"),
        ("tokenizer", f"{len(load_tokenizer(path)):,} tokens" if has_tokenizer else "none"),
    ]
    if backbone := getattr(config, "backbone_config", None):
        rows.insert(1, ("encoder", backbone.encoder_class.__name__))
    if whole.is_encoder_decoder:
        rows.insert(4, ("longest target", f"{whole.decoder.max_position_embeddings:,} tokens"))
        rows.insert(6, ("layers of the decoder", f"{whole.decoder.num_hidden_layers}, {attention_of(whole.decoder)}"))
    if "Classification" in type(model).__name__ and config.problem_type != "regression":
        labels = config.label_names
        rows.append(("labels", ", ".join(labels[:20]) + (f", … ({len(labels)})" if len(labels) > 20 else "")))
    metrics = Path(path) / "metrics.json"
    if metrics.is_file():
        scores = json.loads(metrics.read_text(encoding="utf-8"))
        names = dict.fromkeys(name for headline in HEADLINES.values() for name in headline)
        known = {name: scores[name] for name in names if scores.get(name) is not None}  # null: an infinite perplexity
        rows.extend((f"held-out {name}", value) for name, value in format_scores(known).items())
    return rows
