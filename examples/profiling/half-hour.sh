#!/usr/bin/env bash
# A GPU for half an hour, without network: docs/how-to/profiling-offline.md says what each step gives.
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
  # Shapes of the catalogue: what occurs in the models is taken out again where estimates of these are judged.
  gkest profile plan "${where[@]}" --runtime "$executor" --minutes "${OPERATOR_MINUTES:-9}" --counters 0 \
    -o "$carry/operators.json"
  # The models' own operators, for a bundle that is to know them.
  gkest profile plan "${models[@]}" "${where[@]}" --runtime "$executor" --batch-size "$batches" --no-catalogue \
    --minutes "${OWN_MINUTES:-4}" --counters 0 -o "$carry/own.json"
  [ -z "$gpu" ] || gkest profile plan "${where[@]}" --runtime "$executor" --minutes "${COUNTER_MINUTES:-10}" --counters 1 \
    -o "$carry/counters.json"  # a CPU has none
  local source=${SOURCE:-.} built=
  [ ! -e "$source/build" ] || built=kept
  python3 -m pip wheel -q --no-deps -w "$carry" "$source"
  [ -n "$built" ] || rm -rf "$source/build"  # what pip leaves behind would leak into the next wheel
  cp "${BASH_SOURCE[0]}" "$carry/half-hour.sh"
  say "carry $carry ($(du -sh "$carry" | cut -f1)); there: bash $carry/half-hour.sh models"
}

installed() {  # the machine's own torch, numpy, pandas, onnx, click and pyarrow are used
  command -v gkest >/dev/null && [ -z "${FROM_WHEEL:-}" ] && return
  [ -d "$work/site" ] || { # aside first: what a failed installation leaves must not be taken for one
    rm -rf "$work/site.aside"
    python3 -m pip install -q --no-index --no-deps --target "$work/site.aside" "$carry"/gkestimator-*.whl
    mv "$work/site.aside" "$work/site"
  }
  export PYTHONPATH="$work/site" PATH="$work/site/bin:$PATH"
}

run() {  # PLAN RAW MINUTES more options; a run that has to stop (1) is built of what there is
  local plan=$1 raw=$2 minutes=$3 status=0
  shift 3
  gkest profile run "$carry/$plan" --executor "$executor" --device "$device" --minutes "$minutes" "$@" -o "$work/$raw" || status=$?
  [ $status -lt 2 ] || { say "$plan: nothing could be measured"; exit $status; }
}

pack() {  # FOLDERS of $work: into pieces beside the tables, at most four, for results may have to be few and small
  local packed=$work/$step.tar.gz most=$((4 * piece))
  tar -C "$work" -czf "$packed" "$@"
  if [ "$(stat -c %s "$packed")" -gt $most ]; then
    say "$packed is $(du -sh "$packed" | cut -f1), too large to take along: packed again without the traces of kineto"
    tar -C "$work" --exclude=trace.json.gz -czf "$packed" "$@"
  fi
  if [ "$(stat -c %s "$packed")" -le $most ]; then
    split -b "$piece" "$packed" "$out/$step.tar.gz."
    say "together again: cat $step.tar.gz.* | tar xz"
  else
    say "still $(du -sh "$packed" | cut -f1): only the tables are in $out"
  fi
  say "$(ls "$out" | wc -l) files in $out, $(du -sh "$out" | cut -f1)"
}

[ "$step" = prepare ] && { prepare "$@"; exit; }
[ -d "$carry" ] || { say "$carry: no such folder; expected what prepare made (CARRY=$carry)"; exit 2; }
mkdir -p "$work" "$out"
installed
case $step in
  models)
    # A profiler that hangs must not take the minutes of the models with it.
    timeout 90 gkest doctor --probe >"$out/doctor.txt" 2>&1 || say "doctor found something: see doctor.txt"
    run models.json raw-models "${MINUTES:-6}" --collector "$collector"
    gkest profile table "$work/raw-models" -o "$out/measured.parquet" || say "the table is not complete"
    cp "$out/measured.parquet" "$work" || true  # for the pairs: $OUT may be emptied between calls
    pack raw-models
    ;;
  operators)
    folders=(raw-operators)
    run operators.json raw-operators "${MINUTES:-4}" --collector "$collector" --retries 1
    if [ -f "$carry/own.json" ] && [ "${OWN_MINUTES:-2}" != 0 ]; then
      # In a shell of its own: what was measured before is built even where this one fails.
      (run own.json raw-own "${OWN_MINUTES:-2}" --collector "$collector" --retries 1) || true
      [ ! -f "$work/raw-own/run.json" ] || folders+=(raw-own)
    fi
    gkest profile build "${folders[@]/#/$work/}" -o "$out/operators.parquet" || say "the dataset is not complete"
    pack "${folders[@]}"
    ;;
  counters)
    [ -f "$carry/counters.json" ] || { say "$carry/counters.json: no such file: nothing to count"; exit 2; }
    # ncu and torch take long to start beside what counting an operator takes: few chunks, and long ones.
    run counters.json raw-counters "${MINUTES:-6}" --collector "$collector" --retries 0 --chunk-seconds 60
    gkest profile build "$work/raw-counters" -o "$out/counters.parquet" || say "the dataset is not complete"
    pack raw-counters
    ;;
  pairs)
    journal=pairs.parquet.journal.jsonl  # came home with $OUT, which is empty again
    [ -f "$out/$journal" ] || [ ! -f "$carry/$journal" ] || cp "$carry/$journal" "$out"
    table=()
    [ ! -f "$work/measured.parquet" ] || table=(--table "$work/measured.parquet")
    # All pairs come unconfined before any comes at shares of the SMs: few pairs, so that shares are reached.
    gkest profile pairs "$carry/models.json" --executor "$executor" --device "$device" --minutes "${MINUTES:-3}" \
      ${PAIR_OPTIONS:---pairs 16} "${table[@]}" -o "$out/pairs.parquet" || say "not all pairs were measured"
    ;;
  *) say "$step: expected prepare, models, operators, counters or pairs"; exit 2 ;;
esac
