#!/usr/bin/env bash
# What changed in the .onnx files between a commit and the working tree, in Markdown on stdout.
#
#   gkest-diff.sh BASE [OPTIONS OF gkest diff]
#   gkest-diff.sh origin/main --gpu T4 --batch-size 1,8 --max-latency-pct 5 > comment.md
#
# Exit status: 0 done, 2 a file could not be estimated, 3 a limit is passed. Files that are new or were renamed have nothing to
# be compared with and are left out. Files in Git LFS are fetched by Git; files of external weights need not be there.
set -euo pipefail

base=${1:?"expected a commit to compare with, then options of gkest diff"}
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0 count=0
base=$(git merge-base "$base" HEAD)
cd "$(git rev-parse --show-toplevel)"

while IFS= read -r -d '' path; do
  count=$((count + 1))
  mkdir -p "$work/old/$(dirname "$path")"
  git cat-file --filters "$base:$path" > "$work/old/$path"
  # Names come from strangers, and what this prints is posted.
  printf '### `%s`\n\n' "$(tr -d '`[:cntrl:]' <<< "$path")"
  code=0
  gkest diff "$work/old/$path" "./$path" --format markdown "$@" 2> "$work/said" || code=$?
  if ((code != 0 && code != 3)); then
    printf '```\n%s\n```\n' "$(tr '`' "'" < "$work/said")"
  fi
  cat "$work/said" >&2
  printf '\n'
  # 2 is worse than 3: what could not be estimated may be anything.
  if ((code != 0 && code != 3)); then status=2; elif ((code == 3 && status == 0)); then status=3; fi
done < <(git diff --name-only --diff-filter=M -z "$base" -- '*.onnx')

((count > 0)) || echo "No .onnx file that was there before has changed."
exit "$status"
