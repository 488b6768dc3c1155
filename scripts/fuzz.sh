#!/usr/bin/env bash
# Builds the fuzz targets with libFuzzer on stable Rust, and runs each of them for a while over its kept corpus.
#
#   scripts/fuzz.sh SECONDS [TARGET…]     run; new finds go to a directory of their own, printed at the end
#   scripts/fuzz.sh keep TARGET DIR       take into the corpus what reaches something new, as few files as will do
#
# Needs a C++ compiler: libFuzzer is part of the crate libfuzzer-sys, in C++.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
targets=(key json form multipart stored config capture)
input_bytes_max=4096
triple=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
# Coverage is a pass of LLVM's, which stable Rust can be asked to run. Naming a target keeps it out of build scripts
# and macros.
coverage=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
)

build() {
    local locked=()
    if [[ ${CI:-} == true ]]; then locked=(--locked); fi
    RUSTFLAGS=${coverage[*]} cargo build "${locked[@]}" --manifest-path fuzz/Cargo.toml --target "$triple" \
        "${@/#/--bin=}"
}

run() { # target, then libFuzzer's arguments
    "$CARGO_TARGET_DIR/$triple/debug/$1" -max_len=$input_bytes_max -timeout=20 -rss_limit_mb=2048 "${@:2}"
}

if [[ ${1:-} == keep ]]; then
    build "$2"
    mkdir -p "fuzz/corpus/$2"
    run "$2" -merge=1 "fuzz/corpus/$2" "$3"
    exit
fi

seconds=${1:?how many seconds for each target}
shift
if [[ $# -gt 0 ]]; then targets=("$@"); fi
build "${targets[@]}"
finds=$(mktemp -d)
for target in "${targets[@]}"; do
    mkdir -p "$finds/$target"
    echo "== $target"
    if ! run "$target" -max_total_time="$seconds" -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$finds/$target-" "$finds/$target" "fuzz/corpus/$target" >"$finds/$target.log" 2>&1; then
        grep -vE '^(INFO|NEW_FUNC)' "$finds/$target.log" | tail -40
        for input in "$finds/$target-"*; do
            printf 'fuzz: %s fails on %s:\n' "$target" "$input"
            base64 "$input"
        done
        exit 1
    fi
    sed -n 's/^stat::number_of_executed_units: */inputs: /p' "$finds/$target.log"
done
echo "new inputs are in $finds; keep good ones with scripts/fuzz.sh keep TARGET DIR"
