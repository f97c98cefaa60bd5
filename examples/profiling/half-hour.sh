#!/usr/bin/env bash
# A GPU for half an hour, without network: docs/profiling-offline.md says what each step gives.
#
#   half-hour.sh prepare MODEL.onnx|FOLDER...     at home: plans and a wheel into $CARRY
#   half-hour.sh models|operators|counters|pairs  on the GPU machine, from the folder that holds $CARRY
#
# Each step ends by itself after MINUTES, goes on where it was cut off while $WORK is still there, and leaves in $OUT what
# is to be taken home: tables, and everything recorded as STEP.tar.gz in pieces of at most PIECE bytes.
set -euo pipefail

step=${1:?"expected prepare, models, operators, counters or pairs"}
shift
carry=${CARRY:-.measure} out=${OUT:-out} work=${WORK:-/tmp/gkest-half-hour} device=${DEVICE:-cuda:0}
piece=${PIECE:-15000000} executor=${EXECUTOR:-torch} collector=${COLLECTOR:-kineto}
export PYTHONUNBUFFERED=1
say() { printf 'half-hour: %s\n' "$*" >&2; }

prepare() {
  local gpu=${GPU:-} batches=${BATCHES:-1,8,32,64,128} model models=()
  [ $# -gt 0 ] || { say "prepare: expected model files or folders"; exit 2; }
  for model in "$@"; do models+=(--models "$model"); done
  local where=(--cpu)
  [ -z "$gpu" ] || where=(--gpu "$gpu")
  mkdir -p "$carry"
  gkest profile plan --whole "${models[@]}" "${where[@]}" --batch-size "$batches" --minutes "${MODEL_MINUTES:-6}" \
    --runtime "$executor" -o "$carry/models.json"
  # Shapes of the catalogue alone: what occurs in the models is removed again where estimates of them are judged.
  gkest profile plan "${where[@]}" --minutes "${OPERATOR_MINUTES:-9}" --counters "${COUNTED:-0.25}" \
    --runtime "$executor" -o "$carry/operators.json"
  python3 - "$carry/operators.json" "$carry/counters.json" <<'PYTHON'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    plan = json.load(file)
plan["entries"] = [entry for entry in plan["entries"] if entry["counters"]]
print(f"half-hour: {len(plan['entries'])} entries for counters", file=sys.stderr)
if plan["entries"]:  # none of a plan for a CPU
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(plan, file)
PYTHON
  local source=${SOURCE:-.} built=
  [ ! -e "$source/build" ] || built=kept
  python3 -m pip wheel -q --no-deps -w "$carry" "$source"
  [ -n "$built" ] || rm -rf "$source/build"  # what pip leaves behind would leak into the next wheel
  cp "${BASH_SOURCE[0]}" "$carry/half-hour.sh"
  say "carry $carry ($(du -sh "$carry" | cut -f1)); there: bash $carry/half-hour.sh models"
}

installed() {  # the machine's own torch, numpy, pandas, onnx, click and pyarrow are used
  command -v gkest >/dev/null && [ -z "${FROM_WHEEL:-}" ] && return
  [ -d "$work/site" ] || python3 -m pip install -q --no-index --no-deps --target "$work/site" "$carry"/gkestimator-*.whl
  export PYTHONPATH="$work/site" PATH="$work/site/bin:$PATH"
}

run() {  # PLAN RAW MINUTES more options; a run that has to stop (1) is built of what there is
  local plan=$1 raw=$2 minutes=$3 status=0
  shift 3
  gkest profile run "$carry/$plan" --executor "$executor" --device "$device" --minutes "$minutes" "$@" -o "$raw" || status=$?
  [ $status -lt 2 ] || { say "$plan: nothing could be measured"; pack "$raw"; exit $status; }
}

pack() {  # FOLDER: into pieces beside the tables, at most four, for results may have to be few and small
  [ -d "$1" ] || return 0
  local packed=$work/$step.tar.gz
  tar -C "$(dirname "$1")" -czf "$packed" "$(basename "$1")"
  if [ "$(stat -c %s "$packed")" -le $((4 * piece)) ]; then
    split -b "$piece" "$packed" "$out/$step.tar.gz."
    say "together again: cat $step.tar.gz.* | tar xz"
  else
    say "$packed is $(du -sh "$packed" | cut -f1), too large to take along: only the tables are in $out"
  fi
  say "$(ls "$out" | wc -l) files in $out, $(du -sh "$out" | cut -f1)"
}

[ "$step" = prepare ] && { prepare "$@"; exit; }
[ -d "$carry" ] || { say "$carry: no such folder; expected what prepare made (CARRY=$carry)"; exit 2; }
mkdir -p "$work" "$out"
installed
case $step in
  models)
    gkest doctor --probe >"$out/doctor.txt" 2>&1 || say "doctor found something: see doctor.txt"
    run models.json "$work/raw-models" "${MINUTES:-7}" --collector "$collector"
    gkest profile table "$work/raw-models" -o "$out/measured.parquet" || say "the table is not complete"
    cp "$out/measured.parquet" "$work" || true  # for the pairs: $OUT may be emptied between calls
    pack "$work/raw-models"
    ;;
  operators)
    run operators.json "$work/raw-operators" "${MINUTES:-8}" --collector "$collector" --no-counters --retries 1
    gkest profile build "$work/raw-operators" -o "$out/operators.parquet" || say "the dataset is not complete"
    pack "$work/raw-operators"
    ;;
  counters)
    [ -f "$carry/counters.json" ] || { say "$carry/counters.json: no such file: nothing to count"; exit 2; }
    run counters.json "$work/raw-counters" "${MINUTES:-7}" --collector "$collector" --retries 0
    gkest profile build "$work/raw-counters" -o "$out/counters.parquet" || say "the dataset is not complete"
    pack "$work/raw-counters"
    ;;
  pairs)
    table=()
    [ ! -f "$work/measured.parquet" ] || table=(--table "$work/measured.parquet")
    gkest profile pairs "$carry/models.json" --executor "$executor" --device "$device" --minutes "${MINUTES:-4}" \
      ${PAIR_OPTIONS:-} "${table[@]}" -o "$out/pairs.parquet" || say "not all pairs were measured"
    ;;
  *) say "$step: expected prepare, models, operators, counters or pairs"; exit 2 ;;
esac
