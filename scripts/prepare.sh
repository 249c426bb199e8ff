# Sourced by ./quickstart and ./test: installs what is missing. Sets `venv` and `toolchain`.
# shellcheck shell=sh
venv="${TOOLCHAIN_VENV:-$PWD/.venv}"
toolchain=$venv/bin/toolchain

# Debian packages that are not there yet.
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
  # shellcheck disable=SC2086
  {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
  } >&2
}

# The tool in a virtual environment of its own, from the lock file; `prepare_venv test` adds what tests need.
prepare_venv() {
  wanted="$(cat pyproject.toml requirements.lock) ${1:-}"
  if [ -x "$toolchain" ] && [ "$(cat "$venv/.prepared" 2>/dev/null)" = "$wanted" ]; then
    return 0
  fi
  python=$(command -v python3)
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or newer is needed, $("$python" --version) is here" >&2
    return 1
  }
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --require-hashes -r requirements.lock >&2
  "$venv/bin/pip" install -q --no-deps --no-build-isolation -e . >&2
  printf %s "$wanted" >"$venv/.prepared"
}
