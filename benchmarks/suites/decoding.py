"""Contenders of decoding: language models that have read a long text and are given one more token."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runner.lines import LogLogChart
from runner.suite import Case, Contender, Workload
from suites.contenders import WINDOW, placed
from suites.encoder import VOCABULARY, drawn_ids, our_config
from suites.measurements import LengthComparison, Measurements, drawn, with_k
from torch_linformer.models import LinformerCache, LinformerForCausalLM
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import format_bytes, format_count, format_ratio

OURS = f"LinformerForCausalLM, window of {WINDOW}"
TWIN = "LinformerForCausalLM, full attention"

TIME_SCALE = 4096  # tokens, of the slowest slot: the same for all lengths, so that every case has the same model
PIECE = 1024  # tokens read at a time: ordinary attention writes a mask of that many rows over the whole past
LONGEST_PASS = 16384  # tokens up to which logits are compared with those of one pass without a cache

TIME_LIMIT = 1.1  # of a token after the longest past, over one after the shortest
_DECODING_TEXT = (
    "One more token, from its id to the scores of the vocabulary, after N tokens that were read before: language "
    "models of 4 layers, width 256, 4 heads, feed-forward 1,024, rotary positions, random weights; the twin's full "
    "attention is SDPA. Every step starts from the same N tokens. Up to "
    f"{format_count(LONGEST_PASS)} of them, the scores are compared with those of one pass without a cache."
)
_DECODING_MEMORY = (
    "In addition to the cache that the step starts with. Ordinary attention writes the keys and values of each layer "
    "anew with every token, and here the old ones stay for the next step: memory of a second cache. Text generation "
    "drops the old ones, so it needs this for one layer at a time."
)
_GROWTH = (
    "A token after the longest past compared with one after the shortest, timed in turn, and what is kept of both. "
    f"Required of ours: at most {TIME_LIMIT:.2f}× the time, and a cache of the same size."
)


def contenders() -> list[Contender]:
    """A ``LinformerForCausalLM``, whose past has one size, and the same model with ordinary attention."""
    return [
        Contender(name=OURS, build=partial(_build, options={"window": WINDOW})),
        Contender(name=TWIN, build=partial(_build, options={"attention": "full"}), has_slots=False),
    ]


def _build(case: Case, options: Mapping[str, Any]) -> Workload:
    """A model that has read ``case.length`` tokens; every step gives it one more after those."""
    config = our_config(
        case, max_position_embeddings=TIME_SCALE, position_embedding="rotary", norm_first=True, causal=True, **options
    )
    model = placed(LinformerForCausalLM(config), case)
    model.train(False)
    ids = drawn_ids(case, case.length + 1)
    past = _read(model, ids[:, :-1])

    def run(input_ids: Tensor) -> Tensor:
        logits: Tensor = model(input_ids, past_key_values=_copy(past)).logits
        return logits

    def expected(input_ids: Tensor) -> Tensor:
        whole = torch.cat([ids[:, :-1], input_ids], dim=1)
        logits: Tensor = model(whole, use_cache=False, logits_to_keep=1).logits
        return logits

    return Workload(
        module=model,
        inputs=(ids[:, -1:],),
        run=run,
        expected=expected if case.length <= LONGEST_PASS else None,
        output_shape=(case.batch, 1, VOCABULARY),
        cache=past.nbytes,
    )


def _read(model: LinformerForCausalLM, ids: Tensor) -> LinformerCache:
    """The past that ``ids`` leave, read piece by piece without logits."""
    past = LinformerCache(model.config.num_hidden_layers)
    with torch.inference_mode():
        for piece in torch.split(ids, PIECE, dim=1):
            model.linformer(piece, past_key_values=past)
    return past


def _copy(past: LinformerCache) -> LinformerCache:
    """Another cache of the same tensors, which a step replaces and does not change."""
    copy = LinformerCache(len(past.pasts))
    for here, there in zip(copy.pasts, past.pasts, strict=True):
        here.state = there.state
    copy.add_columns(past.get_seq_length())
    return copy


def sections(results: Measurements) -> tuple[list[Section], dict[str, bytes]]:
    tables: list[Section] = []
    charts: dict[str, LogLogChart] = {}
    for k in results.ks:
        comparison = LengthComparison(results=results, ours=OURS, step="decoding", k=k)
        time = comparison.chart("seconds", "Time of one token after N others")
        cache = comparison.chart("cache", "Cache after N tokens")
        charts.update({f"decoding_time_k{k}": time, f"decoding_cache_k{k}": cache})
        tables += [
            comparison.table("seconds", _DECODING_TEXT, time),
            comparison.table("cache", chart=cache),
            comparison.table("memory", _DECODING_MEMORY),
        ]
    return tables, drawn(charts)


class Growth(NamedTuple):
    """What a longer past costs one decoder.

    Attributes:
        contender: its name.
        k: slots; 0 where it has none.
        lengths: tokens of the shortest and of the longest past that were measured.
        seconds: of a token after either.
        caches: bytes kept of either.
        time_ratio: seconds after the longest past over those after the shortest.
        more_cache: bytes by which the cache of the longest past is larger.
    """

    contender: str
    k: int
    lengths: tuple[int, int]
    seconds: tuple[float, float]
    caches: tuple[int, int]
    time_ratio: float
    more_cache: int


def growths(results: Measurements) -> list[Growth]:
    """One for each decoder and K with two lengths or more, ours first."""
    names = dict.fromkeys((row.contender, row.case.k) for row in results.rows)
    found = []
    for name, k in sorted(names, key=lambda each: each[0] != OURS):
        seconds, caches = (results.points(quantity, name, "decoding", k) for quantity in ("seconds", "cache"))
        both = [length for length in seconds if length in caches]
        if len(both) > 1:
            short, long = both[0], both[-1]
            times, kept = (seconds[short], seconds[long]), (int(caches[short]), int(caches[long]))
            found.append(Growth(name, k, (short, long), times, kept, times[1] / times[0], kept[1] - kept[0]))
    return found


def growth_section(growths: Sequence[Growth]) -> Section:
    rows = [
        [
            with_k(growth.contender, growth.k),
            "–".join(map(format_count, growth.lengths)),
            _factor(growth.time_ratio),
            " to ".join(map(format_bytes, growth.caches)),
            format_bytes(growth.more_cache),
        ]
        for growth in growths
    ]
    columns = ["", "tokens read", "time", "cache", "more"]
    return Section(heading="What a longer past costs", text=_GROWTH, columns=columns, rows=rows)


def headlines(growths: Sequence[Growth]) -> list[Headline]:
    """Time and cache of ours with the largest K, beside its twin's."""
    ours = max((growth for growth in growths if growth.contender == OURS), key=lambda x: x.k, default=None)
    if ours is None:
        return []
    shortest, longest = map(format_count, ours.lengths)
    # Sizes that look alike when they are rounded need not be equal.
    same = "the same" if ours.more_cache == 0 else f"{format_bytes(ours.more_cache)} less"
    times = [f"required: at most {_factor(TIME_LIMIT)}, K = {format_count(ours.k)}"]
    caches = [f"after {shortest}: {same} (required: the same)"]
    for growth in growths:
        if growth.contender == TWIN:
            pasts = " to ".join(map(format_count, growth.lengths))
            times.append(f"full attention: {_factor(growth.time_ratio)} from {pasts}")
            caches.append(f"full attention: {' to '.join(map(format_bytes, growth.caches))} from {pasts}")
    name = f"time of a token after {longest} others, over one after {shortest}"
    return [
        Headline(name=name, value=_factor(ours.time_ratio), note="\n".join(times)),
        Headline(name=f"cache after {longest} tokens", value=format_bytes(ours.caches[1]), note="\n".join(caches)),
    ]


def _factor(ratio: float) -> str:
    """A factor whose limit is given to the hundredth."""
    return f"{ratio:.2f}×" if ratio < 10 else format_ratio(ratio)
