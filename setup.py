"""Lists the packages: all below metasched/, and two top-level folders that become part of it."""

from setuptools import find_packages, setup

OUTSIDE = {"metasched.intrinsics": "intrinsics", "metasched.workloads": "workloads"}

setup(
    packages=[*find_packages(include=["metasched", "metasched.*"]), *OUTSIDE],
    package_dir=OUTSIDE,
    package_data={"metasched": ["py.typed"]},
)
