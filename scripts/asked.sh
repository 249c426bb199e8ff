#!/usr/bin/env bash
# shellcheck disable=SC2153  # names in capitals are environment variables
# Plan the builds that a workflow was asked to make, so that a request that the tool refuses fails before any build
# starts. Planning needs no network. The input consists of STAGE, of the JSON lists BASES and ARCHES, and of the
# TOOLCHAIN_* variables of the build.
set -euo pipefail
cd "$(dirname "$0")/.."
toolchain=.venv/bin/toolchain
list() { jq --exit-status --raw-output 'if type == "array" and length > 0 then .[] | strings else empty end' <<<"$1"; }
fail() {
  echo "::error::$*"
  exit 1
}

bases=$(list "$BASES") || fail "bases is not a JSON list of names, e.g. [\"debian13\"]: $BASES"
arches=$(list "$ARCHES") || fail "arches is not a JSON list of names, e.g. [\"amd64\"]: $ARCHES"
if [ "$STAGE" = triton ]; then
  grep --line-regexp --quiet amd64 <<<"$arches" || fail "these workflows only build Triton for amd64: arches must contain amd64"
  [ -z "${TOOLCHAIN_ONLY:-}" ] || fail "Triton needs the whole of LLVM: \`only\` must be empty"
fi
for base in $bases; do
  for arch in $arches; do
    stage=$STAGE
    if [ "$STAGE" = triton ] && [ "$arch" != amd64 ]; then stage=llvm; fi
    code=0
    bound=$base
    if [ "$base" = portable ]; then bound=; fi
    plan=$(TOOLCHAIN_BASE=$bound "$toolchain" plan "$stage" --arch "$arch" --json) || code=$?
    [ "$code" -eq 0 ] || fail "$stage on $base for $arch: $(jq --raw-output '[.what, .why, .fix] | join("; ")' <<<"$plan")"
    prebuilt=$(jq --raw-output '[.stages[].binaries[]] | join(", ")' <<<"$plan")
    [ -z "$prebuilt" ] || fail "$stage on $base would use prebuilt code ($prebuilt): name a source instead, e.g. triton=URL@COMMIT"
    echo "- $stage on $base for $arch: $(jq --raw-output '[.stages[].image] | join(", ")' <<<"$plan")" >>"$GITHUB_STEP_SUMMARY"
  done
done
