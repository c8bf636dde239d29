"""List the packages of Marlogue; everything else about them is in setup.cfg.

setup.cfg can either map folders to import names or find the packages in a folder, not both at
once, so the list is made here: ``envs/`` is ``marlogue.envs``, and so on.
"""

from setuptools import find_packages, setup

FOLDERS = ("envs", "agents", "algorithms", "wrappers")


def list_packages() -> list[str]:
    """Return the import names of all packages: ``marlogue`` itself, then those of each folder."""
    front_door = ["marlogue", *(f"marlogue.{name}" for name in find_packages("src/marlogue"))]
    patterns = [pattern for folder in FOLDERS for pattern in (folder, f"{folder}.*")]
    return front_door + [f"marlogue.{name}" for name in find_packages(".", include=patterns)]


setup(packages=list_packages())
