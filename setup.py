"""List the packages of Marlogue.

setup.cfg cannot both map folders to import names and find packages in them, so the list is made here. Everything else is in setup.cfg.
"""

from setuptools import find_packages, setup

FOLDERS = ("envs", "agents", "algorithms", "wrappers")

packages = ["marlogue"]
packages += [f"marlogue.{name}" for name in find_packages("src/marlogue")]
packages += [
    f"marlogue.{name}"
    for name in find_packages(".", include=[p for f in FOLDERS for p in (f, f"{f}.*")])
]

setup(packages=packages)
