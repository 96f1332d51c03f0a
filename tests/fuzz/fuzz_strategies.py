"""How cases are drawn: small sizes mostly, now and then a sequence of several chunks; and how many of them."""

import os

from fuzz_cases import LENGTH_OF_NO_ROWS, AttentionCase, DecoderCase, EncoderCase
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

# `make test` runs the same 60 cases every time, or 240 where these are the only test of what the modules compute;
# `make fuzz` sets CASES, and pytest's --hypothesis-seed draws them.
FUZZ = settings(
    max_examples=int(os.environ.get("CASES", "60")),
    derandomize="CASES" not in os.environ,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MODULES = settings(FUZZ, max_examples=int(os.environ.get("CASES", "240")))

PROJECTIONS = ("linear", "random", "conv", "mean", "max", "dynamic")
PADDING = ("-inf float32", "-1e9 float32", "-1e4 float64", "-1e3 bfloat16", "min float16", "min float32")
FILLS = st.sampled_from(["0", "nan", "inf", "-inf", "1e30"])
SEEDS = st.integers(0, 99)
SCORES = st.sampled_from([1.0, 1.0, 30.0, 1000.0])
STEEPNESS = st.sampled_from([0.0, 0.0, 6.0, -8.0])
SHORT = st.integers(0, 13)
LONG = st.integers(60, 140)  # beyond 64 and 128: the chunks of causal attention and the blocks of a window


@st.composite
def rows_of(draw, batch, length):
    """Rows with padding on any side, between tokens, nowhere or everywhere: see ``fuzz_cases.padding_of``."""
    return tuple(draw(row_of(length)) for _ in range(batch))


@st.composite
def row_of(draw, length):
    ends = [*sorted(draw(st.lists(st.integers(0, length), max_size=5))), length]
    marks = draw(st.sampled_from(["x.x.x.", ".x.x.x"]))
    starts = [0, *ends[:-1]]
    runs = [f"{end - start}{mark}" for start, end, mark in zip(starts, ends, marks, strict=False) if end > start]
    return " ".join(runs)


@st.composite
def widths(draw, model, heads, even=False):
    """Model width, heads and their width: ``model`` and ``heads`` are the arguments' names."""
    kv_heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)]))
    options = {heads: kv_heads * groups}
    if groups > 1:
        options["num_kv_heads"] = kv_heads
    if draw(st.booleans()):
        return {model: options[heads] * draw(st.sampled_from([4] if even else [4, 5])), **options}
    return {
        model: draw(st.sampled_from([5, 7])),
        **options,
        "head_dim": draw(st.sampled_from([2, 4] if even else [2, 3])),
    }


@st.composite
def slots_of(draw, length, sharings, name="max_len", k="k"):
    """Options of a map of at least ``length`` positions."""
    longest = max(length, 1) + draw(st.sampled_from([0, 1, 4]))
    options = {name: longest, k: draw(st.integers(1, min(longest, 7)))}
    options["projection"] = draw(st.sampled_from(PROJECTIONS))
    if options["projection"] not in ("mean", "max"):
        options["sharing"] = draw(st.sampled_from(sharings))
    if options["projection"] not in ("linear", "random"):
        options["slot_mass"] = draw(st.sampled_from(["none", "fixed", "learned"]))
    elif draw(st.booleans()):
        options["length_scaling"] = False
    first = draw(st.integers(0, min(longest, 3)))
    exact = {"exact_first": first, "exact_last": draw(st.integers(0, min(longest - first, 3)))}
    return {**options, **(exact if draw(st.booleans()) else {})}


@st.composite
def running_slots(draw):
    """Options of causal attention."""
    window = draw(st.none() | st.integers(1, 9))
    options = {"max_len": draw(st.sampled_from([1, 17, 64])), "k": draw(st.integers(0 if window else 1, 5))}
    options |= {} if window is None else {"window": window}
    return {**options, **({"rotary_dim": 2} if draw(st.booleans()) else {})}


@st.composite
def first_tokens(draw):
    """Those that the queries of causal attention see themselves."""
    return draw(st.sampled_from([{}, {"exact_first": 1}, {"exact_first": 4}]))


@st.composite
def windows(draw, options):
    """A window beside the slots, or now and then without them, which a map that layers share cannot be."""
    window = draw(st.none() | st.integers(1, 9))
    if window is None:
        return {}
    alone = options.get("sharing") != "layerwise" and draw(st.integers(0, 3)) == 0
    return {"window": window, **({"k": 0} if alone else {})}


@st.composite
def handing_over(draw, batch):
    """The fields that all cases have, ``batch_first`` among the options."""
    unbatched = batch == 1 and draw(st.booleans())
    options = {} if draw(st.booleans()) else {"batch_first": False}
    mask = draw(st.sampled_from(["bool", "needed"]) | st.sampled_from(PADDING))
    common = {"options": options, "mask": mask, "fill": draw(FILLS), "unbatched": unbatched, "seed": draw(SEEDS)}
    return {**common, "scores": draw(SCORES), "steepness": draw(STEEPNESS)}


@st.composite
def sizes(draw, lengths):
    """Rows and positions."""
    batch = draw(st.sampled_from([1, 2, 3, 1, 2, 3, 2, 0]))
    return batch, draw(lengths) if batch else LENGTH_OF_NO_ROWS


@st.composite
def attentions(draw, causal, lengths=SHORT):
    batch, length = draw(sizes(lengths))
    common = draw(handing_over(batch))
    options = {**draw(widths("embed_dim", "num_heads", even=causal)), **common.pop("options")}
    options |= {} if draw(st.booleans()) else {"bias": False}
    queries, memory = ["same", "view", "copy"], ()
    if causal:
        options |= {"causal": True, **draw(running_slots()), **draw(first_tokens())}
        queries.append("another")
    else:
        of_window = draw(windows(options))
        options |= {"slot_bias": True} if draw(st.booleans()) else {}
        queries += ["another"] if of_window else ["cross", "compressed"]
    query = draw(st.sampled_from(queries))
    if query in ("cross", "compressed"):
        of_memory = draw(st.just(length) | SHORT) if batch else length
        memory, length_read = draw(rows_of(batch, of_memory)), of_memory
        rows = tuple(f"{length}x" if length else "" for _ in range(batch))
    else:
        rows, length_read = draw(rows_of(batch, length)), length
    if query in ("another", "cross", "compressed"):
        options |= draw(st.sampled_from([{}, {"kdim": 3, "vdim": 2}]))
    if not causal:
        options |= draw(slots_of(length_read, ("none", "kv_per_head", "headwise", "kv"))) | of_window
    return AttentionCase("LinformerAttention", options, rows, query=query, memory=memory, **common)


@st.composite
def feed_forwards(draw):
    """Options of every layer beside its attention."""
    options = {"dim_feedforward": 3, "dropout": 0.0, "activation": draw(st.sampled_from(["relu", "gelu", "silu"]))}
    options |= {name: True for name in ("norm_first", "gated") if draw(st.booleans())}
    chunk_size = draw(st.sampled_from([None, 1, 2, 3, 5, 7]))
    options |= {} if chunk_size is None else {"chunk_size": chunk_size}
    return {**options, **({} if draw(st.booleans()) else {"bias": False})}


@st.composite
def encoders(draw, causal, lengths=SHORT, memories=("none", "checkpoint")):
    batch, length = draw(sizes(lengths))
    common = draw(handing_over(batch))
    options = {**draw(widths("d_model", "nhead", even=causal)), **common.pop("options"), **draw(feed_forwards())}
    stacked = memories == ("reversible",) or draw(st.booleans())
    if causal:
        options |= {"causal": True, **draw(running_slots()), **draw(first_tokens())}
    else:
        options |= draw(slots_of(length, ("none", "kv_per_head", "headwise", "kv", *["layerwise"] * stacked)))
        options |= draw(windows(options))
        options |= {"slot_bias": True} if draw(st.booleans()) else {}
    if stacked:
        options |= {"num_layers": 2 if length < 60 else 1}
        memory = draw(st.sampled_from(memories))
        options |= {"activation_memory": memory, **({"norm_first": True} if memory == "reversible" else {})}
        options |= {} if draw(st.booleans()) else {"final_norm": False}
    name = "LinformerEncoder" if stacked else "LinformerEncoderLayer"
    return EncoderCase(name, options, draw(rows_of(batch, length)), **common)


@st.composite
def decoders(draw, lengths=SHORT):
    batch, length = draw(sizes(lengths))
    common = draw(handing_over(batch))
    options = {**draw(widths("d_model", "nhead", even=True)), **common.pop("options"), **draw(feed_forwards())}
    stacked = draw(st.booleans())
    of_memory = draw(SHORT) if batch else length
    sharings = ("none", "kv_per_head", "headwise", "kv", *["layerwise"] * stacked)
    options |= draw(running_slots()) | draw(slots_of(of_memory, sharings, "memory_len", "memory_k"))
    options |= {} if draw(st.booleans()) else {"memory_dim": 3}
    if stacked:
        options |= {"num_layers": 2 if length < 60 else 1}
        options |= {"activation_memory": draw(st.sampled_from(["none", "checkpoint"]))}
        options |= {} if draw(st.booleans()) else {"final_norm": False}
    name = "LinformerDecoder" if stacked else "LinformerDecoderLayer"
    rows, memory = draw(rows_of(batch, length)), draw(rows_of(batch, of_memory))
    return DecoderCase(name, options, rows, memory=memory, **common)


# One strategy for each way through the code: Hypothesis draws them evenly, but not what it draws within one.
REVERSIBLE = {"memories": ("reversible",)}
WHOLE = [attentions(False), encoders(False), encoders(False, **REVERSIBLE), encoders(False, LONG)]
CAUSAL = [attentions(True), encoders(True), encoders(True, **REVERSIBLE), decoders()]
LONG_CAUSAL = [attentions(True, LONG), decoders(LONG)]


def cases():
    return st.one_of(*WHOLE, *CAUSAL, *LONG_CAUSAL)


def causal_cases():
    return st.one_of(*CAUSAL, *LONG_CAUSAL)
