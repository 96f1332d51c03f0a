"""Folders of sentence-transformers: how they read texts, and how they make vectors of what their encoder read."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from safetensors import SafetensorError

from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.errors import InputError, first_line
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.models.saved_module import CONFIG, WEIGHTS, SavedModule
from torch_linformer.opening.hub import model_file
from torch_linformer.reporting.files import write_json

MODULES = "modules.json"  # that a folder of sentence-transformers has
PROMPTS = "config_sentence_transformers.json"
TRANSFORMER, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"
# By the name of the family, as older versions of sentence-transformers called it.
FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
KINDS = ("Transformer", "Pooling", "Normalize")  # of modules of sentence-transformers, in this order
LEXICAL = f"{LexicalVector.__module__}.{LexicalVector.__name__}"  # ours, after these
PIECES = f"{PieceVectors.__module__}.{PieceVectors.__name__}"  # ours, instead of the last two
Module = TypeVar("Module", bound=SavedModule)


@dataclass(frozen=True, kw_only=True)
class SentenceSettings:
    """What sentence-transformers does with a text before its model reads it; the defaults leave a text as it is.

    Attributes:
        prompts: what may be put before a text, by name.
        default_prompt_name: the one that is, unless another is asked for; None for none.
        max_seq_length: tokens read at once, special tokens included; None for all that the model reads.
        do_lower_case: whether texts become lower case; the folder's tokenizer does it once it is opened here.
    """

    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_seq_length: int | None = None
    do_lower_case: bool = False

    def prompt(self, name: str | None = None) -> str:
        """What is put before every text: the prompt of this name, or the default one.

        Raises:
            InputError: there is no such prompt.
        """
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise InputError(f"--prompt-name {name!r}: no such prompt; the model's folder has {known}")
        return "" if name is None else self.prompts[name]

    def longest(self, most: int) -> int:
        """Tokens that are read at once of the ``most`` that the model reads."""
        return most if self.max_seq_length is None else min(self.max_seq_length, most)


AS_THEY_ARE = SentenceSettings()  # texts of other folders


def sentence_settings(path: str) -> SentenceSettings:
    """The settings of a folder, or on the hub; the defaults where it is none of sentence-transformers.

    Where the folder tells no length, as since version 6, its tokenizer does.

    Raises:
        InputError: a file cannot be read, has a value of another type, or the default prompt is not among the prompts.
    """
    if model_file(path, MODULES) is None:
        return AS_THEY_ARE

    def typed(kind: type, value: Any, name: str, file: str) -> Any:
        if not isinstance(value, kind | None):
            wanted = f"must be of type {kind.__name__}, got {value!r}; correct it"
            raise InputError(f"{path}: {name} in {file} {wanted}")
        return kind() if value is None else value

    names = [f"sentence_{family}_config.json" for family in FAMILIES]
    file, transformer = next(((name, told) for name in names if (told := _fields(path, name))), (TRANSFORMER, {}))
    prompted = _fields(path, PROMPTS)
    told = typed(dict, prompted.get("prompts"), "prompts", PROMPTS)
    prompts = {name: typed(str, text, f"prompt {name!r}", PROMPTS) for name, text in told.items()}
    default = typed(str, prompted.get("default_prompt_name"), "default_prompt_name", PROMPTS) or None
    if default is not None and default not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise InputError(f"{path}: default_prompt_name in {PROMPTS} is {default!r}: name one of its prompts, {known}")
    length = typed(int, transformer.get("max_seq_length"), "max_seq_length", file)
    if not length:
        length = typed(int, _fields(path, TOKENIZER).get("model_max_length"), "model_max_length", TOKENIZER)
    return SentenceSettings(
        prompts=prompts,
        default_prompt_name=default,
        max_seq_length=length or None,
        do_lower_case=typed(bool, transformer.get("do_lower_case"), "do_lower_case", file),
    )


def _fields(path: str, name: str) -> dict[str, Any]:
    """The fields of a JSON file beside a model; none where there is no such file."""
    file = model_file(path, name)
    try:
        return {} if file is None else dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: {name} cannot be read ({error}); copy the folder again") from None


class _Modules(NamedTuple):
    """What follows the encoder: the pooling, and the folders of our modules, where there are any."""

    pooling: str
    lexical: str | None
    pieces: str | None


def _modules(path: str) -> _Modules | None:
    modules = model_file(path, MODULES)
    if modules is None:
        return None
    try:
        parts = json.loads(modules.read_text(encoding="utf-8"))
        kinds, folders = ([part[name] for part in parts] for name in ("type", "path"))
        # The names of modules of another package are kept whole: they are refused.
        kinds = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind in kinds]
        if kinds in ([KINDS[0], PIECES], [KINDS[0], PIECES, LEXICAL]) and not folders[0]:
            return _Modules("mean", folders[2] if LEXICAL in kinds else None, folders[1])
        of_pooling = model_file(path, f"{folders[1]}/config.json")
        if of_pooling is None:
            raise OSError(f"{folders[1]}/config.json is missing")
        config = json.loads(of_pooling.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: {MODULES} or a folder it names cannot be read ({error})") from None
    if kinds not in ([*KINDS], [*KINDS[:2]], [*KINDS, LEXICAL]) or folders[0]:
        raise InputError(
            f"{path}: its modules are {', '.join(kinds)}; understood are folders of Transformer, Pooling and, perhaps, "
            "Normalize and our LexicalVector, the first of them in the folder itself"
        )
    mode = config.get("pooling_mode")  # of its version 6; before it each pooling had a field
    ways = [mode] if isinstance(mode, str) else mode
    if ways is None:
        ways = [
            POOLINGS.get(name, name)
            for name, value in config.items()
            if name.startswith("pooling_mode_") and value is True
        ]
    if len(ways) != 1 or ways[0] not in POOLINGS.values():
        raise InputError(f"{path}: pools by {', '.join(ways) or 'nothing'}; only mean, cls or max are understood")
    if config.get("include_prompt") is False and sentence_settings(path).prompt():
        raise InputError(
            f"{path}: include_prompt in {folders[1]}/config.json is false, and vectors here have the default prompt; "
            f"set default_prompt_name in {PROMPTS} to null to read texts without it"
        )
    return _Modules(ways[0], folders[3] if LEXICAL in kinds else None, None)


def sentence_pooling(path: str) -> str | None:
    """Which pooling follows the encoder in a folder of sentence-transformers, or on the hub; None for another model.

    Raises:
        InputError: the folder is damaged, or has modules or a pooling that embeddings here do not have.
    """
    modules = _modules(path)
    return None if modules is None else modules.pooling


def document_vectors(path: str, config: Any) -> DocumentVectors:
    """What makes the vectors of a model folder, sentence-transformers' or not; ``config`` is that of its reader.

    Where nothing says how, they are means of hidden states.

    Raises:
        InputError: as :func:`sentence_pooling`, or a module of ours is damaged.
    """
    pooling, lexical, pieces = _modules(path) or _Modules(getattr(config, "pooling", "mean"), None, None)
    return DocumentVectors(
        pooling,
        None if lexical is None else _own_module(path, lexical, LexicalVector),
        None if pieces is None else _own_module(path, pieces, PieceVectors),
    )


def _own_module(path: str, folder: str, kind: type[Module]) -> Module:
    """A module of ours, from its folder in the model's."""
    files = [model_file(path, f"{folder}/{name}") for name in (CONFIG, WEIGHTS)]
    if files[0] is None or files[1] is None:
        raise InputError(f"{path}: {folder} lacks {CONFIG} or {WEIGHTS}; copy the folder again")
    try:
        return kind.load(str(files[0].parent))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{path}: {folder} cannot be read ({first_line(error)})") from None


def write_sentence_modules(
    config: Any, folder: Path, vectors: DocumentVectors, settings: SentenceSettings = AS_THEY_ARE
) -> None:
    """Make a folder with an encoder one of sentence-transformers, whose vectors have length 1.

    Its texts have the length and the case of ``settings``. Where a text has several vectors the folder is one of the
    ``MultiVectorEncoder`` of sentence-transformers.
    """
    own: dict[str, SavedModule] = {
        kind: module for kind, module in ((PIECES, vectors.pieces), (LEXICAL, vectors.lexical)) if module is not None
    }
    kinds = [f"sentence_transformers.models.{kind}" for kind in KINDS[: 3 if vectors.pieces is None else 1]]
    modules: list[dict[str, Any]] = []
    for number, kind in enumerate([*kinds, *own]):
        path = f"{number}_{kind.rpartition('.')[2]}" if number else ""
        modules.append({"idx": number, "name": str(number), "path": path, "type": kind})
        if kind in own:
            own[kind].save(str(folder / path))
    if vectors.pieces is None:
        # Under the names that other readers of such folders know too; some want to see all four.
        ways = {
            **{way: name == vectors.pooling for way, name in POOLINGS.items()},
            "pooling_mode_mean_sqrt_len_tokens": False,
        }
        pooling = folder / modules[1]["path"]
        pooling.mkdir(exist_ok=True)
        write_json(pooling / "config.json", {"word_embedding_dimension": config.hidden_size, **ways})
    if vectors.most > 1:  # whose class reads whole rows
        write_json(folder / PROMPTS, {"model_type": "MultiVectorEncoder", "prompts": {}})
    longest = config.longest_input if isinstance(config, LinearConfig) else config.max_position_embeddings
    _write_transformer(folder, settings.longest(longest), settings)
    write_json(folder / MODULES, modules)


def copy_sentence_modules(source: str, folder: Path, max_length: int) -> None:
    """Make a model folder one of sentence-transformers, with the modules after its encoder that ``source`` has."""
    modules = json.loads(cast(Path, model_file(source, MODULES)).read_text(encoding="utf-8"))
    of_modules = [f"{module['path']}/{name}" for module in modules if module["path"] for name in (CONFIG, WEIGHTS)]
    for name in (MODULES, PROMPTS, *of_modules):
        (folder / name).parent.mkdir(exist_ok=True)
        file = model_file(source, name)
        if file is not None:
            shutil.copyfile(file, folder / name)
    _write_transformer(folder, max_length, sentence_settings(source))


def _write_transformer(folder: Path, max_seq_length: int, settings: SentenceSettings) -> None:
    write_json(folder / TRANSFORMER, {"max_seq_length": max_seq_length, "do_lower_case": settings.do_lower_case})
