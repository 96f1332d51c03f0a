"""Files of a model, in its folder or on the hub; its card; and the upload of a finished folder."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData, get_token, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from torch_linformer.errors import InputError, first_line
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.reporting.screen import Screen


def model_file(source: str, name: str) -> Path | None:
    """A file beside a model, in its folder or on the hub; None where there is none."""
    source = encoder_folder(source)
    if Path(source).is_dir():
        here = Path(source) / name
        return here if here.is_file() else None
    try:
        return Path(hf_hub_download(source, name))
    except EntryNotFoundError:  # not in the repository; or, offline, not in the cache
        return None


def card_of_source(source: str | None) -> dict[str, Any]:
    """What the template of model cards needs to know of a source: license and language, where its card has them."""
    file = None if source is None else model_file(source, "README.md")
    fields: dict[str, Any] = {}
    if file is not None:
        with suppress(Exception):  # the head of a card can be any text, and its readers share no base class of errors
            fields = ModelCard.load(file, ignore_metadata_errors=True).data.to_dict()
    kept = {name: fields[name] for name in ("license", "license_name", "license_link", "language") if fields.get(name)}
    return {
        "source": source,
        "source_head": f"{ModelCardData(**kept).to_yaml()}\n" if kept else "",
        "license": kept.get("license"),
        "language": kept.get("language"),
    }


def repository_for(name: str | None) -> str | None:
    """The whole name of a repository for a model; it is made, and private, where it is not there yet.

    ``name`` is ``OWNER/NAME``, or only ``NAME`` for one of the user whose token is here; None asks for none.

    Raises:
        InputError: there is no token, no network, no such owner, or no right to write there.
    """
    if name is None:
        return None
    if get_token() is None:
        raise InputError(f"--push-to-hub {name}: no token of the hub is here; log in by hf auth login, or set HF_TOKEN")
    try:
        user = HfApi().whoami()
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise PermissionError("this token may only read; make one that may write")
        whole_name = name if "/" in name else f"{user['name']}/{name}"
        return HfApi().create_repo(whole_name, private=True, exist_ok=True).repo_id
    except Exception as error:  # those of the HTTP library have no base class in common with those of the hub
        raise InputError(f"--push-to-hub {name}: {_reason(error)}; nothing was trained") from None


def upload(folder: Path, repository: str, screen: Screen) -> None:
    """Upload all that a finished run has left in its folder, which stays as it is whatever happens.

    Raises:
        InputError: the hub did not take it.
    """
    screen.say(f"uploading {folder} to {repository}")
    try:
        commit = HfApi().upload_folder(repo_id=repository, folder_path=folder, commit_message="Add the trained model")
    except Exception as error:  # as above
        raise InputError(
            f"--push-to-hub {repository}: {_reason(error)}; the model is in {folder}, and the same command with "
            "--resume uploads it again"
        ) from None
    screen.say(f"uploaded: {commit.repo_url}")


def _reason(error: Exception) -> str:
    """What the hub says, or what keeps it from being reached."""
    told = getattr(error, "server_message", None)
    return f"{HfApi().endpoint}: {first_line(error)}{f' ({first_line(ValueError(told))})' if told else ''}"
