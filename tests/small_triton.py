"""A small Triton: a setup.py with settings and a build like the real ones, and a module that links LLVMSupport."""

from __future__ import annotations

from pathlib import Path

SETUP = """\
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MIN = (3, 11)
MAX = (3, 13)
REQUIRES = f">={MIN[0]}.{MIN[1]},<{MAX[0]}.{MAX[1] + 1}"


class Build(build_ext):
    def build_extension(self, ext):
        into = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        settings = {
            "CMAKE_C_COMPILER": "clang",
            "CMAKE_CXX_COMPILER": "clang++",
            "CMAKE_BUILD_TYPE": "TritonRelBuildWithAsserts",
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": into,
            "Python3_EXECUTABLE": sys.executable,
            "Python3_INCLUDE_DIR": sysconfig.get_path("platinclude"),
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        words = [f"-D{name}={value}" for name, value in settings.items()]
        words += shlex.split(os.environ["TRITON_APPEND_CMAKE_ARGS"])
        folder = os.environ["TRITON_BUILD_DIR"]
        subprocess.check_call(["cmake", "-G", "Ninja", Path(__file__).resolve().parent, *words], cwd=folder)
        subprocess.check_call(["cmake", "--build", ".", f"-j{os.environ['MAX_JOBS']}"], cwd=folder)


setup(
    name="triton",
    version="0.1",
    packages=["triton"],
    package_dir={"": "python"},
    ext_modules=[Extension("triton._C.libtriton", [])],
    cmdclass={"build_ext": Build},
    python_requires=REQUIRES,
)
"""

CMAKE = """\
cmake_minimum_required(VERSION 3.20)
project(triton CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
find_package(LLVM REQUIRED CONFIG)
find_package(Python3 REQUIRED COMPONENTS Development.Module Interpreter)
find_package(pybind11 CONFIG REQUIRED HINTS "${Python3_SITELIB}")
include_directories(SYSTEM ${LLVM_INCLUDE_DIRS})
add_library(plain OBJECT plain.cpp)
add_library(triton SHARED module.cpp $<TARGET_OBJECTS:plain>)
target_link_libraries(triton PRIVATE LLVMSupport LLVMDemangle Python3::Module pybind11::headers z)
# A program that the build makes and runs.
add_executable(made made.cpp)
add_custom_command(OUTPUT ran COMMAND made > ran DEPENDS made)
add_custom_target(run ALL DEPENDS ran)
"""

PLAIN = """\
#include "llvm/Demangle/Demangle.h"
#include <string>
std::string plain(const char *name) { return llvm::demangle(name); }
"""

MODULE = """\
#include <pybind11/pybind11.h>
#include <string>
std::string plain(const char *name);
PYBIND11_MODULE(libtriton, module) {
  module.def("demangle", &plain);
  module.attr("made_for") = PY_VERSION;
#ifdef NDEBUG
  module.attr("asserts") = false;
#endif
}
"""


def small_triton(folder: Path) -> Path:
    """Write the tree to `folder`, and return it."""
    (folder / "python/triton/_C").mkdir(parents=True)
    (folder / "python/triton/__init__.py").write_text("from triton._C.libtriton import asserts, demangle, made_for\n")
    (folder / "setup.py").write_text(SETUP)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "plain.cpp").write_text(PLAIN)
    (folder / "module.cpp").write_text(MODULE)
    (folder / "made.cpp").write_text("#include <cstdio>\nint main() { std::puts(__VERSION__); }\n")
    return folder
