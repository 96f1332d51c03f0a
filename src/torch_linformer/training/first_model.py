"""The model that ``--from`` names: what its configuration says, and which trainings may begin with it."""

import dataclasses
import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import LinearConfig, opened_by
from torch_linformer.encoders.families import check_kind
from torch_linformer.encoders.positions import UNLIMITED, Positions
from torch_linformer.errors import InputError, flag
from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.opening.load import AnyConfig, check_model, load_any_config, read_length, reader_config
from torch_linformer.opening.sentence_transformers import document_vectors, sentence_pooling
from torch_linformer.training.sizes import size_of_width
from torch_linformer.training.train_settings import FINE_TUNING, MAX_LENGTH, OF_WORDS, READ_LENGTH, TrainSettings


@dataclass(frozen=True)
class FirstModel:
    """A model to begin with, by its configuration; no weights are read.

    Attributes:
        source: its folder, or its name on the hub.
        config: that of a model of this package, or of an encoder of transformers.
    """

    source: str
    config: AnyConfig | PreTrainedConfig

    @classmethod
    def of(cls, settings: TrainSettings) -> Self | None:
        """The model that a training begins with; None for a new one.

        Raises:
            InputError: it is no model of this package, and no encoder of texts that can be linear.
        """
        source = settings.from_model
        if source is None:
            return None
        config = load_any_config(source)
        if isinstance(config, AnyConfig):
            return cls(source, config)
        check_model(source, config)
        try:
            check_kind(source, config)
        except ValueError as error:
            raise InputError(f"--from {error}") from None
        encoder = opened_by(transformers.AutoModel, type(config))
        if encoder is None or encoder.main_input_name != "input_ids":
            raise InputError(f"--from {source} ({config.model_type}): reads no texts; begin with an encoder that does")
        return cls(source, config)

    @property
    def reader(self) -> Any:
        """The configuration of what reads documents: of an encoder-decoder, its encoder's."""
        return reader_config(cast(AnyConfig, self.config))

    @property
    def max_length(self) -> int:
        """Tokens that it reads at once."""
        if isinstance(self.config, AnyConfig):
            return read_length(self.config)
        with no_init_weights():  # only what comes before the first attention is run
            encoder: PreTrainedModel = transformers.AutoModel.from_config(self.config)
        longest = Positions.of(base_of(encoder)).longest
        return longest if longest < UNLIMITED else MAX_LENGTH

    def reads_in_windows(self, settings: TrainSettings) -> bool:
        """Whether it stays as it is and reads long rows in windows, instead of becoming linear.

        That is exact and takes as long; options of slots ask for the other.
        """
        plain = not isinstance(self.config, AnyConfig)
        return plain and settings.task in OF_WORDS and settings.k is None and settings.window is None

    @cached_property
    def pooling(self) -> str:
        """What makes one vector of hidden states: as a folder of sentence-transformers or the configuration says; mean.

        Raises:
            InputError: such a folder has modules that vectors here do not have.
        """
        config = cast(Any, self.config).encoder if self.config.is_encoder_decoder else self.config
        return sentence_pooling(self.source) or str(getattr(config, "pooling", "mean"))

    @property
    def classifier_pooling(self) -> str:
        """The same for what a classifier reads, which has no use for other modules of such a folder."""
        try:
            return self.pooling
        except InputError:
            return "mean"

    @property
    def has_fitted_vectors(self) -> bool:
        """Whether a map was fitted to the vectors that it makes."""
        if sentence_pooling(self.source) is None:
            return False
        pieces = document_vectors(self.source, self.reader).pieces
        return pieces is not None and pieces.is_fitted

    @property
    def token_types(self) -> int:
        """Token types that it tells apart, 0 if it is given none."""
        config: Any = self.config
        if isinstance(config, LinearConfig):
            config = LinformerConfig(backbone_config=config)
        elif not isinstance(config, AnyConfig):
            encoder = cast(Any, opened_by(transformers.AutoModel, type(config)))
            if "token_type_ids" not in inspect.signature(encoder.forward).parameters:
                return 0
        return getattr(config, "type_vocab_size", 0)

    @property
    def types_questions(self) -> bool:
        """Whether questions and texts have token types of their own; a model of this package can be given some."""
        is_own = isinstance(self.config, LinformerConfig) and self.config.backbone_config is None
        return self.token_types != 1 if is_own else self.token_types > 1

    def check(self, settings: TrainSettings) -> None:
        """Raise ``InputError`` where it cannot learn what is wanted because of what it is or what its tokens see."""
        for name in ("k", "window"):
            if isinstance(self.config, AnyConfig) and getattr(settings, name) is not None:
                raise InputError(f"{flag(name)} is for a new model; --from {self.source} has its own")
        seq2seq, causal = isinstance(self.config, LinformerSeq2SeqConfig), getattr(self.config, "causal", False)
        if settings.task == "seq2seq" and not seq2seq:
            wrong = "is no encoder-decoder; --task seq2seq begins with a model of --task seq2seq, or with a new one"
        elif settings.task != "seq2seq" and seq2seq:
            wrong = "is an encoder-decoder, which only learns --task seq2seq; begin with another model, or a new one"
        elif settings.task == "clm" and not causal:
            wrong = "its tokens see those after them; --task clm begins with a model of --task clm, or with a new one"
        elif settings.task == "embed" and causal:
            wrong = "its tokens do not see those after them; --task embed begins with another model, or with a new one"
        elif settings.task == "mlm" and causal:
            wrong = "its tokens do not see those after them, as --task mlm needs; take --task clm, or begin anew"
        elif settings.task == "mlm" and getattr(self.config, "backbone_config", None) is not None:
            wrong = "has no head for masked words any more; --task mlm begins with the encoder that it was made of"
        elif settings.freeze_layers > (layers := self.reader.num_hidden_layers):
            wrong = f"--freeze-layers {settings.freeze_layers} is more than its {layers} layers"
        else:
            return
        raise InputError(f"--from {self.source}: {wrong}")

    def complete(self, settings: TrainSettings) -> TrainSettings:
        """The settings with what this model decides where the user does not: lengths and the learning rate.

        Raises:
            InputError: as :meth:`check`.
        """
        self.check(settings)
        in_windows = self.reads_in_windows(settings)
        if settings.read_window is not None and settings.task in OF_WORDS and not in_windows:
            raise InputError(
                f"--read-window {settings.read_window} is for an encoder as it is, and this one is linear and reads "
                "documents in one pass: leave it out"
            )
        own = isinstance(self.config, LinformerConfig) and self.config.backbone_config is None  # slots of a length
        frozen_search = settings.task == "embed" and settings.frozen and not own
        in_windows = in_windows or bool(frozen_search and settings.read_window)
        longest = READ_LENGTH if in_windows else self.max_length
        decided: dict[str, Any] = {"max_length": settings.max_length or longest}
        if isinstance(self.config, LinformerSeq2SeqConfig) and settings.max_target_length is None:
            decided["max_target_length"] = cast(LinformerConfig, self.config.decoder).max_position_embeddings
        if settings.learning_rate is None and not settings.frozen:
            decided["learning_rate"] = FINE_TUNING * size_of_width(self.reader.hidden_size).learning_rate
        return dataclasses.replace(settings, **decided)
