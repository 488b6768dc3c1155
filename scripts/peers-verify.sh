#!/usr/bin/env bash
# Runs `semel verify` on other people's implementations, and demands that it finds what peers/expected.tsv lists and
# nothing else: a flaw that is missing is a hole in the tester, one more may be a false alarm.
#
#   scripts/peers-verify.sh RESULTS.tsv [NAME...]    these peers, or all
#
# SEMEL is the program, else it is built. Scorecards and logs go to SEMEL_PEERS_OUT, if that is set. They take minutes,
# mostly waiting: a dead service's lease has to end before its retry can run again.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

results=${1:?usage: peers-verify.sh RESULTS.tsv [NAME...]}
shift
at_once=3
scratch=$(mktemp -d)
out=${SEMEL_PEERS_OUT:-$scratch/out}
mkdir -p "$out"
peers=$scratch/peers

# Called through trap.
# shellcheck disable=SC2317
finish() {
    scripts/peers.sh stop "$peers"
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM

for tool in node npm python3 cargo; do
    command -v "$tool" >/dev/null || { echo "peers-verify.sh: $tool is not installed" >&2 && exit 3; }
done
if [[ -z ${SEMEL:-} ]]; then
    cargo build -q -p semel-cli || exit 1
    SEMEL=${CARGO_TARGET_DIR:-target}/debug/semel
fi

order='"amount":100,"currency":"EUR","reference":"{tag}"'
# A request that is just taken, with an answer that is too large to be kept: the service sends back what it got.
large() { # peer
    local bytes=1572864
    case $1 in
        fastapi-idempotency) bytes=8388500 ;;
        idempotent) bytes=1048470 ;;
    esac
    printf '{%s,"note":"' "$order" && head -c "$bytes" /dev/zero | tr '\0' x && printf '"}'
}

ids() { # peer, run: the checks that are listed for them
    awk -F'\t' -v peer="$1" -v run="$2" '$1 == peer && $2 == run { print $3 }' peers/expected.tsv | sort -u | paste -sd,
}

# How long a retry must be patient: longer than the lease of a dead service. Some have none, and wait for ever.
patience() {
    case $1 in
        idempotent) echo 75s ;;
        idemkit) echo 40s ;;
        asgi-idempotency-header | node-idempotency) echo 8s ;;
        *) echo 30s ;;
    esac
}

# One run of the tester. `all` is everything against the profile of the peer; the others are a few checks each.
verify() { # peer, run, seed, and perhaps the only checks
    local name=$1 run=$2 seed=$3 only=${4:-} url counter header base other profile=$scratch/$1.toml body="{$order}"
    IFS=$'\t' read -r _ url counter header < <(scripts/peers.sh list "$peers" | grep "^$name	")
    base=${url%/*}
    other=$base/refunds
    [[ $name == idempotent-proxy-server ]] && other=$base/URL_refunds
    local arguments=(-H 'Content-Type: application/json' -H 'Authorization: Bearer alice' --count-url "$counter"
        --answer-max "$(patience "$name")" --seed "$seed")
    [[ $header != - ]] && arguments+=(-H "$header")
    # A peer's own line stands in place of the common one.
    local own=/dev/null
    [[ -s peers/$name/profile.toml ]] && own=peers/$name/profile.toml
    awk -F' *= *' 'FNR == NR { own[$1] = 1; print; next } !($1 in own)' "$own" peers/profile.toml >"$profile"
    case $run in
        all)
            arguments+=(--other-tenant 'Authorization: Bearer bob' --other-route "$other" --other-method PUT
                --failing-data "{$order,\"fail\":true}"
                --kill "scripts/peers.sh kill $peers $name" --start "scripts/peers.sh up $peers $name")
            [[ -d $peers/$name/redis ]] &&
                arguments+=(--store-stop "scripts/peers.sh store-stop $peers $name"
                    --store-start "scripts/peers.sh store-start $peers $name")
            ;;
        ietf | semel) profile=$run ;;
        put) arguments+=(-X PUT) ;;
        large)
            large "$name" >"$scratch/$name.json"
            body=@$scratch/$name.json
            ;;
        brief) arguments+=(--expiry 24s) ;;
        slow) arguments+=(--slow-data "{$order,\"pace_ms\":10000}") ;;
        *) echo "peers/expected.tsv: no run is called $run" >&2 && return 2 ;;
    esac
    [[ $run == all ]] || only=${only:-$(ids "$name" "$run")}
    [[ -z $only ]] || arguments+=(--only "$only")
    "$SEMEL" verify "$url" -d "$body" --profile "$profile" "${arguments[@]}" --json "$out/$name.$run.$seed.json" \
        --html "$out/$name.$run.$seed.html" >"$out/$name.$run.$seed.txt" 2>&1
    # 1 is what we came for; 2 with a scorecard says that nothing was shown.
    [[ $? -le 1 || -s $out/$name.$run.$seed.json ]] || { echo "$name, $run: semel verify did not run: see $out/$name.$run.$seed.txt" >&2 && return 2; }
    python3 - "$out/$name.$run.$seed.json" "$name" "$run" <<'READ' >>"$out/$name.found.tsv"
import json, sys
for check in json.load(open(sys.argv[1]))["checks"]:
    if check["verdict"] == "fail":
        print(sys.argv[2], sys.argv[3], check["id"], check["cause"], sep="\t")
READ
}

# Checks that should have failed and did not.
missed() { # peer, run
    awk -F'\t' -v peer="$1" -v run="$2" '
        FNR == NR { found[$2, $3] = 1; next }
        $1 == peer && $2 == run && $5 != "maybe" && !((run, $3) in found) { print $3 }' \
        "$out/$1.found.tsv" peers/expected.tsv | paste -sd,
}

peer() {
    local run runs lost
    : >"$out/$1.found.tsv"
    mapfile -t runs < <(awk -F'\t' -v peer="$1" '$1 == peer && !seen[$2]++ { print $2 }' peers/expected.tsv)
    for run in "${runs[@]}"; do
        verify "$1" "$run" 1 || return
        # Whether a kill or a race meets its moment is luck: what was not found is tried once more, at other moments.
        lost=$(missed "$1" "$run")
        [[ -z $lost ]] || verify "$1" "$run" 2 "$lost" || return
    done
}

names=("$@")
[[ $# -gt 0 ]] || mapfile -t names < <(awk -F'\t' 'NR > 1 && !seen[$1]++ { print $1 }' peers/expected.tsv)
scripts/peers.sh start "$peers" "${names[@]}" || exit 1
code=0
for name in "${names[@]}"; do
    while [[ $(jobs -rp | wc -l) -ge $at_once ]]; do wait -n; done
    peer "$name" &
done
wait

# `expected` and `learnt` must be found; `maybe` depends on luck; all else must not be.
for name in "${names[@]}"; do
    awk -F'\t' -v OFS='\t' -v peer="$name" '
        FNR == NR { if ($1 == peer) { found[$2, $3] = $4 }; next }
        $1 != peer { next }
        {
            listed[$2, $3] = 1
            if (!(($2, $3) in found)) verdict = $5 == "maybe" ? "not this time" : "NOT FOUND"
            else verdict = found[$2, $3] == $4 ? "found" : "NOT FOUND, but " found[$2, $3]
            print $1, $2, $3, $4, $5, verdict
        }
        END {
            for (pair in found) {
                if (pair in listed) continue
                split(pair, part, SUBSEP)
                print peer, part[1], part[2], found[pair], "not listed", "UNEXPECTED"
            }
        }' "$out/$name.found.tsv" peers/expected.tsv
done >"$scratch/rows"
{ printf 'peer\trun\tcheck\tcause\tlisted as\tverdict\n' && cat "$scratch/rows"; } >"$results"
grep -E 'NOT FOUND|UNEXPECTED' "$scratch/rows" && code=1
awk -F'\t' '{ count[$6 ~ /^found/ ? "found" : $6]++ } END { for (v in count) printf "%s: %d\n", v, count[v] }' "$scratch/rows"
exit "$code"
