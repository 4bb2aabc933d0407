"""Sending an export to the Hugging Face hub."""
from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from ..hub import first_line, hub_endpoint, outage_of


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a repository on the hub; raises UserError."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"--push {name}: is no name for the hub, such as owner/name ({first_line(error)}).") from None


def push(folder: Path, name: str, private: bool) -> str:
    """Send all files of a folder to a repository of the hub, which is made where it is not there; weights of an earlier export are removed from it.

    :param folder: a whole export.
    :param name: OWNER/NAME, or NAME for the user's own.
    :param private: of a repository that is made.
    :return: its address.
    :raises UserError: when the hub does not take it; the folder stays as it is.
    """
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub_endpoint())
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Export of lmplay",
                          delete_patterns=["*.safetensors", "*.safetensors.index.json", "tokenizer*", "*.jinja", "curve.png"])
    except Exception as error:  # the network library behind the client, and its exceptions, change with its version
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            advice = "log in with `hf auth login`, or set HF_TOKEN to a token that may write there"
        else:
            advice = "try again later" if outage_of(error) is not None else "see what it says"
        raise UserError(f"--push {name}: the hub refused it ({' '.join(str(error).split())[:300]}); {advice}. The folder {folder} is complete.") from None
    return f"{hub_endpoint()}/{made.repo_id}"
