#!/usr/bin/env bash
# Breaks each rule on purpose and demands that a test notices. See scripts/mutants.tsv.
#
#   scripts/mutants.sh RESULTS.tsv
#
# A killer test must pass without its mutant and fail, crash or hang (120 s) with it. A survivor, a killer that
# fails anyway, and a filter that matches no test are failures. Rules without a mutant are listed as unproven.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

rules=(G-1 G-2 G-3 G-4 G-5 G-6 G-7 G-8 G-9 G-10 G-11 G-12 G-13 G-14 G-15 G-16 G-17 G-18 G-19 G-20 G-21 G-22
    G-30 G-31 G-40 G-41 G-42 G-43 G-44 G-45 G-46 G-47 G-70 G-71 G-80 G-81)
limit_seconds=120
results=${1:?usage: mutants.sh RESULTS.tsv}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
# A killer is a short test, and what a broken build does is not coverage.
unset SEMEL_MUTANT SEMEL_TEST_LONG SEMEL_TEST_LEDGER SEMEL_TEST_SIMULATION
export SEMEL_SIMULATION_SEEDS=40
declare -A baseline proven

printf 'rule\tmutant\tkilling test\tverdict\n' >"$results"

# Lines of "package directory, package, test binary" of a build in which rules can be broken.
build() {
    cargo test --workspace --features full,mutants --no-run --message-format=json-render-diagnostics >"$scratch/build" || return 1
    sed -n 's#.*"manifest_path":"\([^"]*\)/Cargo.toml".*"profile":{[^}]*"test":true[^}]*}.*"executable":"\([^"]*\)".*#\1\t\2#p' \
        "$scratch/build" >"$scratch/found"
    local directory binary
    while IFS=$'\t' read -r directory binary; do
        printf '%s\t%s\t%s\n' "$directory" "$(sed -n 's/^name = "\(.*\)"/\1/p' "$directory/Cargo.toml" | head -1)" "$binary"
    done <"$scratch/found" >"$scratch/binaries"
}

# How many tests of the package the filter selects.
count() {
    local package=$1 directory owner binary
    shift
    while IFS=$'\t' read -r directory owner binary; do
        [[ $owner == "$package" ]] && (cd "$directory" && "$binary" "$@" --list --format terse </dev/null 2>/dev/null)
    done <"$scratch/binaries" | grep -c ': test$'
}

# Runs the selected tests: 0 all passed, 1 some failed or crashed, 2 did not run, 124 took too long.
run() {
    local package=$1 directory owner binary code worst=0
    shift
    while IFS=$'\t' read -r directory owner binary; do
        [[ $owner == "$package" ]] || continue
        (cd "$directory" && exec timeout --kill-after=5 "$limit_seconds" "$binary" "$@") </dev/null >>"$scratch/out" 2>&1
        code=$?
        case $code in
            0) ;;
            124 | 137) worst=124 ;;
            125 | 126 | 127) return 2 ;;
            *) [[ $worst -eq 124 ]] || worst=1 ;;
        esac
    done <"$scratch/binaries"
    return "$worst"
}

verdict() {
    local package=$1 mutant=$2 code selected
    shift 2
    local id="$package $*"
    selected=$(count "$package" "$@")
    if [[ $selected -eq 0 ]]; then
        echo "ERROR: no test of $package matches '$*'"
        return
    fi
    if [[ -z ${baseline[$id]:-} ]]; then
        : >"$scratch/out"
        if run "$package" "$@"; then
            baseline[$id]=passes
        else
            baseline[$id]=fails
            tail -n 40 "$scratch/out" >&2
        fi
    fi
    if [[ ${baseline[$id]} == fails ]]; then
        echo "ERROR: the test fails without the mutant"
        return
    fi
    : >"$scratch/out"
    SEMEL_MUTANT=$mutant run "$package" "$@"
    code=$?
    case $code in
        0) echo "SURVIVED" ;;
        1) echo "killed" ;;
        124) echo "killed (hung)" ;;
        *) echo "ERROR: the test did not run" ;;
    esac
}

build || {
    echo "mutants: the build with --features mutants fails" >&2
    exit 1
}
while IFS=$'\t' read -r rule mutant package filter broken; do
    [[ -z $rule || $rule == '#'* || $rule == rule ]] && continue
    read -ra words <<<"${filter:-}"
    if [[ ${#words[@]} -eq 0 || -z ${broken:-} ]]; then
        answer="ERROR: the line has empty columns"
    else
        verdict "$package" "$mutant" "${words[@]}" >"$scratch/verdict"
        answer=$(<"$scratch/verdict")
    fi
    [[ $answer == killed* ]] || failures=$((failures + 1))
    for each in ${rule//,/ }; do
        [[ $answer == killed* ]] && proven[$each]=yes
    done
    printf '%s: %s (%s; %s: %s)\n' "$answer" "$mutant" "${broken:-}" "$package" "${filter:-}"
    printf '%s\t%s\t%s: %s\t%s\n' "$rule" "$mutant" "$package" "${filter:-}" "$answer" >>"$results"
done <scripts/mutants.tsv

unproven=0
for rule in "${rules[@]}"; do
    if [[ -z ${proven[$rule]:-} ]]; then
        unproven=$((unproven + 1))
        printf '%s\t-\t-\tunproven\n' "$rule" >>"$results"
    fi
done
echo "mutants: $failures not killed, $unproven of ${#rules[@]} rules unproven"
[[ $failures -eq 0 ]]
