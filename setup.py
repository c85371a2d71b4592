"""Lists the extension modules; everything else about the package stands in pyproject.toml.

Environment switches, all off by default:

* ``IGNIS_SANITIZE``: value of ``-fsanitize=``, e.g. ``address,undefined``
* ``IGNIS_DEBUG``: ``1`` builds without optimisation and with the thread checks of ``IGN_DEBUG``
* ``IGNIS_COVERAGE``: ``1`` adds gcov instrumentation to the C files
* ``IGNIS_WERROR``: ``1`` turns the C core's warnings into errors (for continuous integration)
"""

from __future__ import annotations

import os
import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

CHANNEL = ["channel", "region", "bytering", "ring", "slab", "wait", "error"]

# Each extension links the C files it needs, so that no shared library has to be found at run time. The few globals
# of those files (fork counter, SIGBUS registry) are made to exist several times in a process.
SOURCES = {
    "record": ["record", "column", "crc32c"],
    "slab": ["slab", "wait", "error"],
    "ring": ["ring", "wait", "error"],
    "frame": ["frame", "error"],
    "wait": ["board", *CHANNEL[1:]],
    "channel": CHANNEL,
    "outbox": ["board", *CHANNEL],
    "intake": ["board", *CHANNEL, "record", "crc32c"],
    "wire": ["wire", "wire_send", "frame", "record", "crc32c", "error"],
}


def flag(name: str) -> bool:
    """True when the environment variable is set to something that means yes."""
    return os.environ.get(name, "").lower() not in ("", "0", "false", "no")


def compile_args() -> list[str]:
    """Options for every C file, generated ones included."""
    args = ["-std=c11", "-fvisibility=hidden", "-fstack-protector-strong", "-pthread"]
    if flag("IGNIS_DEBUG"):
        args += ["-O0", "-g", "-DIGN_DEBUG", "-U_FORTIFY_SOURCE"]
    else:
        args += ["-O3", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
    if sanitize := os.environ.get("IGNIS_SANITIZE"):
        args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g", "-U_FORTIFY_SOURCE"]
    if flag("IGNIS_COVERAGE"):
        args += ["--coverage"]
    if flag("IGNIS_WERROR"):
        # What Cython generates is not ours to keep free of these.
        args += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-parameter"]
        args += ["-Wno-missing-field-initializers", "-Wno-cast-function-type", "-Wno-unreachable-code"]
    return args


def link_args() -> list[str]:
    """Options for the linker."""
    args = ["-pthread"]
    if sys.platform.startswith("linux"):
        args += ["-Wl,-z,relro,-z,now"]
    if sanitize := os.environ.get("IGNIS_SANITIZE"):
        args += [f"-fsanitize={sanitize}"]
    if flag("IGNIS_COVERAGE"):
        args += ["--coverage"]
    return args


def extensions() -> list[Extension]:
    """One extension per primitive."""
    return [
        Extension(
            f"ignis.native.{name}",
            [f"ignis/native/{name}.pyx", *(f"csrc/ignis_{unit}.c" for unit in units)],
            include_dirs=["csrc"],
            depends=[f"csrc/{header}" for header in sorted(os.listdir("csrc")) if header.endswith(".h")],
            extra_compile_args=compile_args(),
            extra_link_args=link_args(),
        )
        for name, units in SOURCES.items()
        if os.path.exists(f"ignis/native/{name}.pyx")
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        build_dir="build/cython",
        compiler_directives={"language_level": "3", "embedsignature": True},
    )
)
