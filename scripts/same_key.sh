#!/bin/sh
# Check that PUBLIC_KEY and SIGNING_KEY, both in PEM, belong together, and print the SHA-256 of the public key. The script
# writes no key to a file, and prints no key.
set -eu
fail() {
  echo "::error::$*"
  exit 1
}
key_id() { sha256sum | cut -d' ' -f1; }

[ -n "${PUBLIC_KEY:-}" ] || fail "the variable TOOLCHAIN_PUBLIC_KEY is not set: nobody could verify the signatures (docs/github.md)"
[ -n "${SIGNING_KEY:-}" ] || fail "the secret TOOLCHAIN_SIGNING_KEY is not set in the environment ghcr (docs/github.md)"
public=$(printf '%s\n' "$PUBLIC_KEY" | openssl pkey -pubin -outform DER 2>/dev/null | key_id)
half=$(printf '%s\n' "$SIGNING_KEY" | openssl pkey -passin pass: -pubout -outform DER 2>/dev/null | key_id)
nothing=$(key_id </dev/null)
[ "$public" != "$nothing" ] || fail "TOOLCHAIN_PUBLIC_KEY is not a public key in PEM"
[ "$half" != "$nothing" ] || fail "TOOLCHAIN_SIGNING_KEY is not a private key in PEM, or has a passphrase"
[ "$public" = "$half" ] || fail "TOOLCHAIN_PUBLIC_KEY does not belong to TOOLCHAIN_SIGNING_KEY"
echo "key $public"
