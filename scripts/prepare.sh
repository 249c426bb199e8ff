# Define functions that install missing packages. ./quickstart, ./test and the workflows source this file, which also sets
# `venv` and `toolchain`. If `log` is set, the functions append the output of apt and pip to the file that it names.
# shellcheck shell=sh
venv="${TOOLCHAIN_VENV:-$PWD/.venv}"
toolchain=$venv/bin/toolchain

logged() {
  if [ -n "${log:-}" ]; then "$@" >>"$log" 2>&1; else "$@" >&2; fi
}

# Install those of the given Debian packages that are missing.
prepare_system() {
  missing=
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  echo "installing:$missing" >&2
  if [ "$(id -u)" -ne 0 ]; then
    echo "not root: run apt-get install$missing" >&2
    return 1
  fi
  logged apt-get update -qq
  # shellcheck disable=SC2086
  logged env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
}

# Install llvm-objdump of LLVM 22, 21, 20 or 19 for the emulator, in the newest of these versions that the distribution
# has. Do nothing if llvm-objdump of one of these versions is installed. Return 1 if the distribution lacks all four.
prepare_objdump() {
  for version in 22 21 20 19; do
    [ ! -x "/usr/bin/llvm-objdump-$version" ] || return 0
  done
  [ "$(id -u)" -ne 0 ] || logged apt-get update -qq
  for version in 22 21 20 19; do
    if apt-cache show "llvm-$version" >/dev/null 2>&1; then
      prepare_system "llvm-$version"
      return
    fi
  done
  echo "the distribution has no llvm-objdump of LLVM 19 or newer, so kernels are not checked" >&2
  return 1
}

# Install the tool, its plugin and the packages in requirements/KIND.lock into the virtual environment. The argument is
# KIND; by default it is `run`.
prepare_venv() {
  kind=${1:-run}
  # An environment that was prepared for tests serves every kind, because it contains all packages that the tool needs.
  for have in "$kind" test; do
    if [ -x "$toolchain" ] && [ "$(cat "$venv/.prepared" 2>/dev/null)" = "$(cat pyproject.toml lab/pyproject.toml "requirements/$have.lock")" ]; then
      return 0
    fi
  done
  python=$(command -v python3)
  "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or newer is needed, but python3 is $("$python" --version)" >&2
    return 1
  }
  [ -x "$venv/bin/python" ] || "$python" -I -m venv "$venv"
  # --no-deps is set because the lock file lists all packages, and pip 23 would look for others (docs/develop.md).
  # --no-compile is set because Python compiles a module when it is first imported, and most modules are never imported.
  logged "$venv/bin/python" -I -m pip install -q --disable-pip-version-check --no-compile --no-deps --require-hashes -r "requirements/$kind.lock"
  logged "$venv/bin/python" -I -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./lab
  cat pyproject.toml lab/pyproject.toml "requirements/$kind.lock" >"$venv/.prepared"
}
