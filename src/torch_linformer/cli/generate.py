"""``linformer generate``."""

import sys
from typing import Annotated

import typer

from torch_linformer.cli.missing_paths import check_model
from torch_linformer.cli.options import Debug, Device, Model
from torch_linformer.cli.streams import check_standard_output


def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="text to continue  [-: standard input]")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="maximum number of new tokens")] = 200,
    temperature: Annotated[
        float | None, typer.Option(help="sampling temperature; 0 takes the most likely token  [1]")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="sample only from the N most likely tokens  [all]")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="sample from the smallest set of tokens with this total probability  [1]")
    ] = None,
    num_beams: Annotated[int, typer.Option(help="above 1: beam search; the text is shown when it is finished")] = 1,
    seed: Annotated[int | None, typer.Option(help="random seed  [a different text each time]")] = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Continue a text, with a model of --task clm.

    The new text is shown while it is generated. An empty prompt begins a text.
    """
    check_model(model)
    from torch_linformer.inference.generate import Choice, load_causal_model
    from torch_linformer.inference.generate import generate as continue_text
    from torch_linformer.opening.devices import resolve_device
    from torch_linformer.opening.load import load_tokenizer

    check_standard_output()
    choice = Choice(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, num_beams=num_beams, seed=seed
    )
    loaded, tokenizer = load_causal_model(model, resolve_device(device)), load_tokenizer(model)
    text = _standard_input() if prompt is None or prompt == "-" else prompt
    try:
        continue_text(loaded, tokenizer, text, choice, _show)
    except KeyboardInterrupt:
        print()  # so that the message has a line of its own
        raise
    print()


def _show(piece: str) -> None:
    from torch_linformer.reporting.tables import printable

    print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)


def _standard_input() -> str:
    """All of standard input, without its last line break, which ``echo`` adds."""
    if sys.stdin.isatty():
        print("the text to continue, and Ctrl-D at its end:", file=sys.stderr)
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    return text.removesuffix("\n").removesuffix("\r")
