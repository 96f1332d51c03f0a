"""What the card of a model says of its source: license and language, as far as the source's own card has them."""

from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from torch_linformer.opening.model_files import model_file
from torch_linformer.opening.named_encoders import encoder_folder

_KEPT = ("license", "license_name", "license_link", "language")


def source_fields(source: str | None) -> dict[str, Any]:
    """License and language of a folder or a model on the hub; nothing where its card has none, or for None."""
    file = None if source is None else model_file(encoder_folder(source), "README.md")
    if file is None:
        return {}
    try:
        fields = ModelCard.load(file, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # the head of a card can be any text, and its readers share no base class of errors
        return {}
    return {name: fields[name] for name in _KEPT if fields.get(name)}


def card_of_source(source: str | None) -> dict[str, Any]:
    """What the template ``reporting/template_files/model_card.md`` needs to know of a source."""
    fields = source_fields(source)
    told = {"license": fields.get("license"), "language": fields.get("language")}
    return {"source": source, "source_head": as_head(fields), **told}


def as_head(fields: dict[str, Any]) -> str:
    """The same as lines of the head of a card."""
    return f"{ModelCardData(**fields).to_yaml()}\n" if fields else ""
