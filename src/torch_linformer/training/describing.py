"""What a run says of its data and its model before it trains."""

import numpy as np

from torch_linformer.data.windows import ask_of_lines
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder
from torch_linformer.encoders.heads import AUTO_OF_HEAD, head_of
from torch_linformer.models import LinformerConfig
from torch_linformer.opening.load import AnyConfig, AnyModel, reader_config
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.tables import format_count, format_percent
from torch_linformer.tasks.retrieval import queries_of
from torch_linformer.tasks.task import Examples
from torch_linformer.training.splits import Splits
from torch_linformer.training.train_settings import NO_WINDOWS, OF_TEXT, OF_WORDS, TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

MOST = 0.5  # a share of the documents
READ_WHOLE = 0.9  # a share of them that a length should do for
LENGTHS = [2**power for power in range(4, 18)]  # up to 131,072 tokens


def describe_data(splits: Splits, train: Examples, settings: TrainSettings, screen: TrainingScreen) -> None:
    """How many documents there are for what, their labels and lengths, and what of them is not read."""
    tokens = train.num_tokens
    long = tokens > settings.length
    screen.say(
        f"{format_count(len(splits.train))} documents to train on, {format_count(len(splits.validation))} for "
        f"validation, {format_count(len(splits.test))} held out"
    )
    if "queries" in splits.train.column_names:
        train_queries, validation_queries, test_queries = (
            format_count(len(queries_of(part))) for part in (splits.train, splits.validation, splits.test)
        )
        screen.say(f"{train_queries} queries to train on, {validation_queries} for validation, {test_queries} held out")
    if splits.names:
        labels = ", ".join(splits.names[:20]) + (", …" if len(splits.names) > 20 else "")
        screen.say(f"{len(splits.names)} labels: {labels}")
    low, middle, high = (format_count(value) for value in np.quantile(tokens, (0.05, 0.5, 0.95)))
    lost = format_percent(float((tokens - np.minimum(tokens, settings.length)).sum() / tokens.sum()))
    fate = f"are cut at --max-length {settings.length}, which leaves out {lost} of all tokens"
    in_windows = settings.overflow == "windows" or settings.task in OF_TEXT
    if in_windows:
        fate = f"are longer than --max-length {settings.length}; {format_count(len(train.windows))} windows in all"
    screen.say(
        f"tokens a document: median {middle}, 5 % below {low}, 5 % above {high}; {format_percent(long.mean())} {fate}"
    )
    for question in ask_of_lines(sum(map(len, (splits.train, splits.validation, splits.test))), tokens):
        screen.say(question)
    if not in_windows and long.mean() > MOST:
        screen.say(_longer(tokens, settings))
    if settings.task == "seq2seq":
        tokens = np.asarray(train.windows["target_tokens"][:])
        long = tokens > settings.target_length
        screen.say(
            f"tokens a target: median {format_count(np.median(tokens))}; {format_percent(long.mean())} are cut at "
            f"--max-target-length {settings.target_length}"
        )


def _longer(tokens: np.ndarray, settings: TrainSettings) -> str:
    """What reads most of the documents whole, where most are cut, and what that costs."""
    enough = float(np.quantile(tokens, READ_WHOLE))
    longer = next((length for length in LENGTHS if length >= enough), LENGTHS[-1])
    whole, slower = format_percent(float((tokens <= longer).mean())), longer / settings.length
    windows = "" if settings.task in NO_WINDOWS else "; --overflow windows reads all of them"
    return (
        f"warning: most documents are cut: --max-length {longer} reads {whole} of them whole, with steps of up to "
        f"{slower:.2g} times the time (--check measures it){windows}"
    )


def describe_model(
    model: AnyModel, settings: TrainSettings, device: str, precision: str, screen: TrainingScreen
) -> None:
    """What the training begins with, and what it computes on."""
    if settings.from_model:
        name = f"from {settings.from_model}"
        keeps_all = settings.task in ("embed", "seq2seq") or isinstance(model, LinearEncoder)
        first = "nothing of it new" if keeps_all else "only its head is new"
        if settings.freeze_layers > 0:
            first += f"; the word embeddings stay, and of its layers the lowest {settings.freeze_layers}"
    else:
        name = settings.size
        embeddings = "latent semantics of the documents" if settings.task in OF_WORDS else "random"
        first = f"first word embeddings {embeddings}"
    size = f"{format_count(model.num_parameters())} parameters"
    screen.say(f"model {name}: {size}, {attention_of(model.config)}, {first}; {device}, {precision}")


def own_fields(config: AnyConfig) -> LinformerConfig:
    """The configuration of what reads documents; that of an encoder of transformers by the names of this package."""
    reader = reader_config(config)
    return LinformerConfig(backbone_config=reader) if isinstance(reader, LinearConfig) else reader


def opener_of(model: AnyModel) -> str:
    """The class that opens a model's folder, as it is written in Python."""
    if not isinstance(model, LinearEncoder):
        return f"torch_linformer.{type(model).__name__}"
    head = head_of(model)
    return f"transformers.{'AutoModel' if head == 'none' else AUTO_OF_HEAD[head].__name__}"
