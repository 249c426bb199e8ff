#!/usr/bin/env bash
# Open an issue for each finding of new_pins.py that has no issue from this workflow yet, and start a short build for the
# first of these findings that can be built. FINDINGS is the JSON list of findings. ISSUES and BUILDS are the maximum
# numbers of issues and builds in one run. REF is the git ref on which the workflow `build` runs.
set -euo pipefail
repo="repos/$GITHUB_REPOSITORY"
tell() { echo "- $*" | tee -a "$GITHUB_STEP_SUMMARY"; }

if [ "$(gh api "$repo" --jq .has_issues)" != true ]; then
  tell "issues are disabled in this repository, so nothing is opened and nothing is built"
  exit 0
fi
# Issues by other authors are ignored, because anybody can open an issue with such a title.
known=$(gh api --paginate "$repo/issues?state=all&per_page=100" \
  --jq '.[] | select(.user.login == "github-actions[bot]") | .title')
while read -r finding; do
  title=$(jq --raw-output .title <<<"$finding")
  if grep --fixed-strings --line-regexp --quiet -- "$title" <<<"$known"; then continue; fi
  if [ "$ISSUES" -eq 0 ]; then
    tell "$title: the next run opens this issue, because this run has reached its maximum number of issues"
    continue
  fi
  ISSUES=$((ISSUES - 1))
  source=$(jq --raw-output '.build.source // ""' <<<"$finding")
  triton=$(jq --raw-output '.build.triton // ""' <<<"$finding")
  body=$(jq --raw-output .why <<<"$finding")
  [ -z "$source" ] || body="$body. To build it: the workflow \`build\` with source \`$source\` and triton \`$triton\`."
  # The issue is opened before the build is started, because the next run starts the build again if no issue exists.
  gh api "$repo/issues" --raw-field title="$title" --raw-field body="$body" --jq .html_url
  tell "$title: opened"
  if [ -n "$source" ] && [ "$BUILDS" -gt 0 ]; then
    BUILDS=$((BUILDS - 1))
    gh api "$repo/actions/workflows/build.yml/dispatches" --raw-field ref="$REF" \
      --raw-field "inputs[source]=$source" --raw-field "inputs[triton]=$triton" --raw-field "inputs[only]=tablegen"
    tell "$title: its table generators are being built"
  fi
done < <(jq --compact-output '.[]' <<<"$FINDINGS")
