"""Lists the extension modules; everything else about the package stands in pyproject.toml.

Environment switches, all off by default:

* ``IGNIS_SANITIZE``: value of ``-fsanitize=``, e.g. ``address,undefined``
* ``IGNIS_DEBUG``: ``1`` builds without optimisation and with the thread checks of ``IGN_DEBUG``
* ``IGNIS_COVERAGE``: ``1`` adds gcov instrumentation to the C files
* ``IGNIS_WERROR``: ``1`` turns the C core's warnings into errors (for continuous integration)
* ``CYTHON_CACHE_DIR``: a directory that keeps what Cython generates, for all builds of the same sources
* ``IGNIS_SYMBOLS``: ``1`` keeps symbols and line numbers, for profilers and debuggers; otherwise they are left out
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
HEADERS = [f"csrc/{name}" for name in sorted(os.listdir(HERE / "csrc")) if name.endswith(".h")]
CORE = [f"csrc/{name}" for name in sorted(os.listdir(HERE / "csrc")) if name.endswith(".c")]
MODULES = sorted(path.stem for path in (HERE / "ignis" / "native").glob("*.pyx"))
JOBS = os.cpu_count() or 1


def flag(name: str) -> bool:
    """True when the environment variable is set to something that means yes."""
    return os.environ.get(name, "").lower() not in ("", "0", "false", "no")


def compile_args(optimised: str = "-O3") -> list[str]:
    """Options for every C file. What Cython generates gets ``-O2``: a sixth less to compile, smaller, and as fast within 2 %."""
    args = ["-std=c11", "-fvisibility=hidden", "-fstack-protector-strong", "-pthread"]
    # The directory of the build is in no message of an assertion and no line table: two builds give the same bytes.
    args += [f"-ffile-prefix-map={HERE}=."]
    if for_machines():
        args += ["-g0"]  # after the interpreter's own -g
    if flag("IGNIS_DEBUG"):
        args += ["-O0", "-g", "-DIGN_DEBUG", "-U_FORTIFY_SOURCE"]
    else:
        args += [optimised, "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
    if sanitize := os.environ.get("IGNIS_SANITIZE"):
        args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g", "-U_FORTIFY_SOURCE"]
    if flag("IGNIS_COVERAGE"):
        args += ["--coverage"]
    if flag("IGNIS_WERROR"):
        # What Cython generates is not ours to keep free of these.
        args += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-parameter"]
        args += ["-Wno-missing-field-initializers", "-Wno-cast-function-type", "-Wno-unreachable-code"]
    return args


def for_machines() -> bool:
    """True when nobody wants to look inside: neither a debugger, a profiler nor a sanitizer."""
    return not any(map(flag, ("IGNIS_DEBUG", "IGNIS_SYMBOLS", "IGNIS_SANITIZE", "IGNIS_COVERAGE")))


def link_args() -> list[str]:
    """Options for the linker."""
    args = ["-pthread"]
    if for_machines():
        args += ["-Wl,-x"] if sys.platform == "darwin" else ["-Wl,-s"]
    if sys.platform.startswith("linux"):
        args += ["-Wl,-z,relro,-z,now"]
    if sanitize := os.environ.get("IGNIS_SANITIZE"):
        args += [f"-fsanitize={sanitize}"]
    if flag("IGNIS_COVERAGE"):
        args += ["--coverage"]
    return args


def readme() -> str:
    """The README with links that work where the repository's files are not beside it."""
    source = re.search(r'^Source = "(.*)"$', (HERE / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert source is not None
    links = re.compile(r"\]\((?![a-z]+:|#)")
    return links.sub(f"]({source[1]}/blob/main/", (HERE / "README.md").read_text("utf-8"))


class BuildExtensions(build_ext):
    """Also builds the C core that the extensions link, which ``build_ext`` alone takes for built."""

    def run(self) -> None:
        self.run_command("build_clib")
        super().run()


def core() -> tuple[str, dict[str, Any]]:
    """The C core, compiled once. Each extension links what it needs of it, so that no shared library has to be found
    at run time. Its few globals (fork counter, SIGBUS registry) are made to exist several times in a process."""
    return "ignis_core", {
        "sources": CORE,
        "include_dirs": ["csrc"],
        "obj_deps": {"": HEADERS},
        "cflags": compile_args(),
    }


def extensions() -> list[Extension]:
    """One extension per primitive."""
    return [
        Extension(
            f"ignis.native.{name}",
            [f"ignis/native/{name}.pyx"],
            include_dirs=["csrc"],
            depends=[*HEADERS, *CORE],
            extra_compile_args=compile_args("-O2"),
            extra_link_args=link_args(),
        )
        for name in MODULES
    ]


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    libraries=[core()],
    ext_modules=cythonize(
        extensions(),
        build_dir="build/cython",
        cache="CYTHON_CACHE_DIR" in os.environ,
        nthreads=JOBS,
        compiler_directives={"language_level": "3", "embedsignature": True},
    ),
    cmdclass={"build_ext": BuildExtensions},
    options={"build_ext": {"parallel": JOBS}},
)
