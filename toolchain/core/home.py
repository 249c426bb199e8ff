"""The user's home folder in paths that the shell did not expand."""

from __future__ import annotations

import os


def expanded(path: str) -> str:
    """Return a path with `~` or `~USER` at its beginning replaced by the home folder; unchanged if the user is unknown.

    The shell expands `~` neither in `--cache=~/x` and `oci:~/x` nor in the environment of a CI job.
    """
    return os.path.expanduser(path)  # noqa: PTH111 - `Path.expanduser` fails if the user is unknown
