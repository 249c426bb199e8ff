#!/usr/bin/env bash
# shellcheck disable=SC2153  # names in capitals are environment variables
# Do the work of action.yml after the tool is installed: reuse or build a stage, publish and sign it, and remove the key
# and the login.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
toolchain="$here/.venv/bin/toolchain"
login="$HOME/.docker/config.json"
scratch=$(mktemp -d "$RUNNER_TEMP/toolchain-XXXXXX")
private=$SIGNING_KEY token=$TOKEN
unset SIGNING_KEY TOKEN
before=no
[ ! -f "$login" ] || before=yes
tidy() {
  rm -rf "$scratch"
  [ "$before" = yes ] || rm -f "$login"
}
trap tidy EXIT

fail() {
  echo "::error::$*"
  exit 1
}
# Log in to a registry, unless the job already has a file with logins.
enter() {
  [ "$before" = no ] || return 0
  mkdir -p "$HOME/.docker"
  printf '%s' "$token" | skopeo login --authfile "$login" --username "$LOGIN" --password-stdin "${1%%/*}"
}

[ -z "$REUSE_FROM" ] || [ -n "$REUSE_KEY" ] || fail "reuse-from needs reuse-key, the public key of the publisher"
[ -n "$PUBLISH_TO" ] || [ -z "$private" ] || fail "key needs publish-to, because only published images are signed"
if [ -z "$TOOLCHAIN_SOURCE$TOOLCHAIN_TRITON" ]; then export TOOLCHAIN_CONFIG="$here/.github/toolchain.toml"; fi
words=()
[ -z "$ARCHIVE" ] || words=(--archive "$ARCHIVE")
mkdir -p "$TOOLCHAIN_CACHE"

if [ -n "$REUSE_FROM" ]; then
  enter "$REUSE_FROM"
  printf '%s\n' "$REUSE_KEY" >"$scratch/publisher.pub"
  words+=(--reuse-from "${REUSE_FROM,,}" --public-key "$scratch/publisher.pub")
fi
"$toolchain" build "$STAGE" "${words[@]}" --json >"$scratch/built.json"

[ -n "$PUBLISH_TO" ] || exit 0
enter "$PUBLISH_TO"
words=()
if [ -n "$private" ]; then
  (umask 077 && printf '%s\n' "$private" >"$scratch/key")
  words=(--key "$scratch/key")
fi
read -ra names < <("$here/.venv/bin/python" -I -c 'import json, sys; print(*json.load(sys.stdin)["publish"])' <"$scratch/built.json")
"$toolchain" publish "${PUBLISH_TO,,}" "${names[@]}" "${words[@]}" --json >"$scratch/published.json"
"$here/.venv/bin/python" -I - "$scratch/published.json" <<'END' | tee -a "$GITHUB_OUTPUT"
import json
import sys
from pathlib import Path

one = json.loads(Path(sys.argv[1]).read_text())["published"][-1]
print("name=" + one["refs"][0].rpartition(":")[0])
print("digest=" + one["digest"])
END
