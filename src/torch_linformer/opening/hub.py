"""A finished folder on the hub: where it will go is made sure of before the work, and it is uploaded after it."""

from pathlib import Path

from huggingface_hub import HfApi, get_token

from torch_linformer.errors import InputError, first_line
from torch_linformer.reporting.screen import Screen


def repository_for(name: str | None) -> str | None:
    """The whole name of a repository for a model; it is made, and private, where it is not there yet.

    Args:
        name: ``OWNER/NAME``, or only ``NAME`` for one of the user whose token is here; None asks for none.

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
