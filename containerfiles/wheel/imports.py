"""Import modules and print which imports succeed.

    imports.py MODULE... -- PACKAGE...

The program imports each MODULE, each PACKAGE and the modules in each PACKAGE. It prints a JSON object, {"imported":
[name], "failed": {name: reason}}.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator


def main() -> None:
    """Import the modules and print the result."""
    # A module may print when it is imported or when Python exits, so only this descriptor gets the result.
    result = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    at = sys.argv.index("--")
    names, packages = sys.argv[1:at], sys.argv[at + 1 :]
    imported, failed = [], {}
    for name in dict.fromkeys([*names, *(one for package in packages for one in modules(package))]):
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module may exit
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        else:
            imported.append(name)
    with result:
        print(json.dumps({"imported": imported, "failed": failed}), file=result)


def modules(package: str) -> Iterator[str]:
    """Yield the name of a package, and the names of the modules and subpackages in it at any depth.

    The function imports the package and its subpackages. For a package that cannot be imported, it yields only the name
    of the package. Subpackages without `__init__.py` are left out.
    """
    yield package
    try:
        folder = importlib.import_module(package).__path__
    except BaseException:  # noqa: BLE001 - main imports the package again and reports the error
        return
    for module in pkgutil.iter_modules(folder, f"{package}."):
        if module.ispkg:
            yield from modules(module.name)
        else:
            yield module.name


if __name__ == "__main__":
    main()
