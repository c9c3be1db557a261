"""Pushing a folder to the Hugging Face hub: when asked to, with the token of the environment, private at first."""

import os
import re
from pathlib import Path

from cohyde.errors import UserError

TOKEN = "HF_TOKEN"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def check_push(repository: str) -> None:
    """Find out before anything is written whether a push can work.

    Raises:
        UserError: the name cannot be a repository's, or there is no token in the environment.
    """
    if not NAME.fullmatch(repository):
        raise UserError(f"{repository!r} is no name of a repository", "write OWNER/NAME, for example acme/tools")
    if not os.environ.get(TOKEN):
        raise UserError(
            f"{TOKEN} is not set: the hub lets nobody write without a token",
            f"export {TOKEN}=… with one that may write",
        )


def push(folder: Path, repository: str, *, public: bool = False) -> str:
    """Upload a folder as one commit of a model repository, which is made where there is none.

    Args:
        folder: all of it is uploaded.
        repository: ``OWNER/NAME``.
        public: makes a new repository public; one that is there keeps what it is.

    Returns:
        The address of the repository.

    Raises:
        UserError: as :func:`check_push`; or the hub does not answer, or refuses. The folder stays as it is.
    """
    check_push(repository)
    from huggingface_hub import HfApi

    # The endpoint as it is now, and not as it was when the library was imported.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=os.environ[TOKEN])
    try:
        url = api.create_repo(repository, private=not public, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export of a CoHyDE run")
    except Exception as error:  # refusals, and lost connections of whatever client the library uses: no common base
        raise UserError(
            f"{repository}: the hub did not take it ({type(error).__name__}: {str(error).splitlines()[0]})",
            f"the folder is whole; try again with: hf upload {repository} {folder} .",
        ) from None
    return str(url)
