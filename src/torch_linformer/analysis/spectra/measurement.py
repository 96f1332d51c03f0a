"""Spectra of a model over documents of one length, one document at a time."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from torch_linformer.analysis.spectra.low_rank_error import KS, LONGEST, LowRankMeasurement
from torch_linformer.analysis.spectra.observing import ObservedHead, check_readable, observe_heads
from torch_linformer.analysis.spectra.singular_values import exact_singular_values, randomised_singular_values
from torch_linformer.analysis.spectra.spectrum import Architecture, Spectrum, SpectrumMean

EXACT_UP_TO = 4096  # tokens; one P takes 7 s there, eight times as long at twice the length (docs/spectrum.md)
RANK = 1024  # values computed of a longer P


def measure_spectrum(
    model: PreTrainedModel,
    documents: Sequence[Tensor],
    *,
    exact_up_to: int = EXACT_UP_TO,
    rank: int = RANK,
    ks: Sequence[int] = KS,
    on_layer: Callable[[int, int], None] = lambda document, layer: None,
) -> Spectrum:
    r"""Singular values of the context mapping P = softmax(Q Kᵀ / √D) of every layer and head, averaged over documents.

    One P is in memory at a time, whatever the number of documents, layers and heads. The errors of low-rank outputs are
    measured too. With two or more documents of at most 1,024 tokens projections are fitted to the first half of them,
    and all errors measured on the second.

    Args:
        model: an encoder or decoder of transformers, a full-attention twin, or a linear encoder or a model of this
            package whose slots the input chooses (its P is what its queries and keys give); on its device and in
            evaluation mode.
        documents: ``(N,)`` token ids each, all of one length, without padding.
        exact_up_to: the longest N for which all N values are computed; beyond it the first ``rank``.
        rank: see ``exact_up_to``.
        ks: the K at which errors are measured.
        on_layer: called with the numbers of a document and a layer, from 0, once that layer is done.

    Raises:
        ValueError: no documents, documents of several lengths, or a model whose attention cannot be read.

    Source: arXiv 2006.04768, section 3 and figure 1.
    """
    lengths = {len(document) for document in documents}
    if len(lengths) != 1:
        raise ValueError(f"documents must be at least one, all of one length, got lengths {sorted(lengths)}")
    (length,), architecture = lengths, architecture_of(model)
    shape, exact = (architecture.layers, architecture.heads), length <= exact_up_to
    spectra, errors, fitted = SpectrumMean(shape), None, len(documents) // 2 if length <= LONGEST else 0
    if any(k <= length for k in ks):
        errors = LowRankMeasurement(shape, length, ks)
    inputs = [document.unsqueeze(0).to(model.device) for document in documents]
    check_readable(model, inputs[0])
    for number, input_ids in enumerate(inputs):
        if errors is not None and number == fitted:
            errors.solve()

        def observe(head: ObservedHead, number: int = number) -> None:
            found = exact_singular_values(head.weights) if exact else randomised_singular_values(head.weights, rank)
            spectra.add(head.layer, head.number, found)
            if errors is not None:
                (errors.fit if number < fitted else errors.measure)(head)
            if head.number == architecture.heads - 1:
                on_layer(number, head.layer)

        seen = observe_heads(model, input_ids, observe)
        if seen != architecture.layers:
            raise ValueError(
                f"a {model.config.model_type} model attends in {seen} of its {architecture.layers} layers: only models "
                "that attend in each are read"
            )
    return Spectrum(
        length=length,
        documents=len(documents),
        method="exact" if exact else "randomised",
        architecture=architecture,
        low_rank=None if errors is None else errors.result(fitted, len(documents) - fitted),
        **spectra.mean(len(documents)),
    )


def architecture_of(model: PreTrainedModel) -> Architecture:
    """The sizes of a model, from its configuration.

    Raises:
        ValueError: the configuration names no layers or heads.
    """
    config: Any = model.config.get_text_config()
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    sizes: list[Any] = [getattr(config, name, None) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"a {config.model_type} model has no attention weights that can be read")
    layers, heads, width = sizes
    return Architecture(
        layers=layers,
        heads=heads,
        width=width,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        feedforward=getattr(config, "intermediate_size", None) or 4 * width,
    )
