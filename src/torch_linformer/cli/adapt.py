"""``linformer adapt``."""

from functools import partial
from typing import Annotated, Any

import typer

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.cli.missing_paths import check_model
from torch_linformer.cli.options import showing
from torch_linformer.cli.resumable import options_of, run_resumable


@showing(options_of(AdaptSettings))
def adapt(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="folder of an encoder, its name on the hub, or minilm")
    ],
    **options: Any,
) -> None:
    """Adapt a pretrained encoder to long inputs.

    Its attention becomes linear in the length. Then it is trained, on texts without labels, to give the hidden states
    and embeddings of the original. SOURCE is a text encoder of transformers (BERT, RoBERTa, XLM-R, ModernBERT,
    Nomic-BERT, GTE, …), with or without a head, or a folder of sentence-transformers with such an encoder; minilm is
    all-MiniLM-L6-v2, of the extra "minilm".
    """
    check_model(source)
    run_resumable(partial(_run, source), AdaptSettings, options)


def _run(source: str, *arguments: Any, **options: Any) -> None:
    from torch_linformer.adaptation.adaptation import run_adaptation

    run_adaptation(source, *arguments, **options)
