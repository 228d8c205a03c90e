"""What pyproject.toml cannot say: the wheel has `containers/` as the package data of `orchestrate.containers`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["orchestrate*", "results*", "tfbench*"]), "orchestrate.containers"],
    package_dir={"orchestrate.containers": "containers"},
)
