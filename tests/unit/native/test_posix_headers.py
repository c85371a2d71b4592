"""The C core sees what POSIX adds to the headers of plain C with every C library, not only where one shows it unasked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[3] / "csrc"
COMPILER = shutil.which("cc")
SOURCES = sorted(path.name for path in CORE.glob("*.c"))
POSIX_HEADERS = {"_FCNTL_H", "_PTHREAD_H", "_SETJMP_H", "_SIGNAL_H", "_SYS_MMAN_H", "_UNISTD_H"}
"""What glibc's headers define; musl's have the same names."""

# POSIX keeps the prefix to itself, and the C libraries add to it.
OWN_NAME = re.compile(r"^[a-z][\w \*]*?\b(posix_\w+)\(", re.MULTILINE)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="reads the macros of a Linux C library")
def test_posix_is_asked_for_before_its_first_header() -> None:
    assert COMPILER is not None
    late = []
    for name in SOURCES:
        done = subprocess.run(
            [COMPILER, "-std=c11", "-dM", "-E", name], cwd=CORE, capture_output=True, text=True, timeout=60, check=True
        )
        macros = dict(re.findall(r"^#define (\w+) ?(.*)$", done.stdout, re.MULTILINE))
        asked = {"_GNU_SOURCE", "_POSIX_C_SOURCE"} & macros.keys()
        heard = "__GLIBC__" not in macros or "__USE_XOPEN2K8" in macros  # glibc's own sign: not asked too late
        if POSIX_HEADERS & macros.keys() and not (asked and heard):
            late.append(name)
    assert late == []


def test_no_function_has_a_name_of_posix() -> None:
    found = {name: OWN_NAME.findall((CORE / name).read_text("utf-8")) for name in SOURCES}
    assert {name: names for name, names in found.items() if names} == {}
