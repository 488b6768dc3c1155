#!/usr/bin/env bash
# Drivers of other languages for the examples in examples/transactions: psycopg from PyPI, pg from npm.
#
#   scripts/languages.sh python    print the interpreter of a virtual environment that has psycopg
#   scripts/languages.sh node      print a directory whose node_modules has pg
#
# The first call installs, into SEMEL_LANGUAGES_DIR or ~/.cache/semel/languages; later ones only look.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
place=${SEMEL_LANGUAGES_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/semel/languages}
mkdir -p "$place"
# One installer at a time: tests run beside each other.
exec 9>"$place/lock"
flock 9

case ${1:-} in
    python)
        wanted=$root/examples/transactions/python/requirements.txt
        if ! cmp -s "$wanted" "$place/python/requirements.txt"; then
            rm -rf "$place/python"
            python3 -m venv "$place/python" >&2
            "$place/python/bin/pip" install --quiet --disable-pip-version-check -r "$wanted" >&2
            cp "$wanted" "$place/python/requirements.txt"
        fi
        echo "$place/python/bin/python"
        ;;
    node)
        wanted=$root/examples/transactions/node/package.json
        if ! cmp -s "$wanted" "$place/node/installed.json"; then
            rm -rf "$place/node"
            mkdir -p "$place/node"
            cp "$wanted" "$place/node/package.json"
            npm install --prefix "$place/node" --silent --no-audit --no-fund --ignore-scripts >&2
            cp "$wanted" "$place/node/installed.json"
        fi
        echo "$place/node"
        ;;
    *)
        echo "languages.sh: name a language: python or node" >&2
        exit 2
        ;;
esac
