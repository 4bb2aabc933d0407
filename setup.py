"""Packages of lmplay; all else is in pyproject.toml.  The built-in plans stand in the top folder `plans` and are shipped as lmplay/plans."""
from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lmplay", "lmplay.*"]), "lmplay.plans"],
    package_dir={"lmplay.plans": "plans"},
    package_data={"lmplay.plans": ["*.json"], "lmplay.plotstats": ["report.html"], "lmplay.generate": ["page.html"]},
)
