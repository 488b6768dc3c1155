# Bytes are bytes here, but not in the user's commands.
locale=${LC_ALL-}
LC_ALL=C
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
patience=@PATIENCE@
rounds=${ROUNDS:-@ROUNDS@}

stop() { # stop WORDS: it cannot be tried
  printf 'not tried: %s\n' "$1" >&2
  exit 2
}

needs() { # needs VARIABLE WHAT: secrets are not written into scripts
  [ -n "${!1}" ] || stop "set $1 to $2"
}

fresh() { # fresh LENGTH: hexadecimal digits nobody used before
  od -An -N32 -tx1 /dev/urandom | tr -d ' \n' | cut -c "1-$1"
}

split() { # of $url: authority, host, port and path
  local rest=${url#*://}
  authority=${rest%%[/?]*}
  path=${rest#"$authority"}
  case $path in /*) ;; *) path=/$path ;; esac
  authority=${authority##*@}
  case $authority in
    \[*\]:*) port=${authority##*:} host=${authority%:*} ;;
    \[*\]) port='' host=$authority ;;
    *:*) port=${authority##*:} host=${authority%:*} ;;
    *) port='' host=$authority ;;
  esac
  host=${host#\[} host=${host%\]}
  case $url in https:*) port=${port:-443} ;; *) port=${port:-80} ;; esac
}

# Of the request in $method, $url, $headers and $body.
curl_arguments() {
  local line has_type=''
  arguments=(-X "$method" --url "$url" -H 'Expect:')
  for line in "${headers[@]}"; do
    case $line in
      [Cc]ontent-[Tt]ype:*) has_type=yes ;;
    esac
    case $line in
      # So curl wants a header without a value.
      *:) arguments+=(-H "${line%:};") ;;
      *) arguments+=(-H "$line") ;;
    esac
  done
  [ -n "$has_type" ] || arguments+=(-H 'Content-Type:')
}

with_body() {
  case $method in
    POST | PUT | PATCH) arguments+=(--data-binary "@$body") ;;
    *) [ -s "$body" ] && arguments+=(--data-binary "@$body") ;;
  esac
}

curl_plain() {
  curl -q -sS -g --path-as-is --noproxy '*' --max-time "$patience" "$@"
}

status() { # status NUMBER: of its whole answer
  sed -n 's/^HTTP\/[0-9.]* \([2-9][0-9][0-9]\).*/\1/p' "$work/$1.head" 2>/dev/null | tail -n 1
}

told() { # told NUMBER NAME
  local answer
  answer=$(status "$1")
  printf '  %s: %s\n' "$2" "${answer:-$(head -n 1 "$work/$1.error" 2>/dev/null | grep . || echo 'no answer')}"
}

call() { # call NUMBER NAME REQUEST
  local number=$1 name=$2
  "$3"
  curl_arguments
  with_body
  curl_plain --http1.1 -D "$work/$number.head" -o "$work/$number.body" "${arguments[@]}" 2>"$work/$number.error" ||
    rm -f "$work/$number.head"
  told "$number" "$name"
}

slow() { # slow NUMBER NAME REQUEST PIECES PAUSE: the body in pieces
  local number=$1 name=$2 pieces=$4 pause=$5 size at
  "$3"
  curl_arguments
  size=$(($(wc -c <"$body") / pieces + 1))
  for ((at = 0; at < pieces; at++)); do
    tail -c "+$((at * size + 1))" "$body" | head -c "$size"
    sleep "$pause"
  done | curl_plain --http1.1 -T - -D "$work/$number.head" -o "$work/$number.body" "${arguments[@]}" \
    2>"$work/$number.error" || rm -f "$work/$number.head"
  told "$number" "$name"
}

http2() { # http2 NUMBER NAME REQUEST…: on one connection
  local all=() names=() pids='' at
  while [ $# -gt 0 ]; do
    "$3"
    curl_arguments
    with_body
    arguments+=(-sS -g --path-as-is --noproxy '*' --max-time "$patience" -D "$work/$1.head" -o "$work/$1.body")
    names+=("$1" "$2")
    case $url in
      https:*)
        [ ${#all[@]} -eq 0 ] || all+=(--next)
        all+=(--http2 "${arguments[@]}")
        ;;
      *)
        # Without TLS, curl before 8 fails when requests share a connection: each has its own.
        curl -q --http2-prior-knowledge "${arguments[@]}" 2>"$work/$1.error" &
        pids="$pids $!"
        ;;
    esac
    shift 3
  done
  [ ${#all[@]} -eq 0 ] || curl -q -Z --no-progress-meter "${all[@]}" 2>"$work/${names[0]}.error"
  [ -z "$pids" ] || wait $pids
  for ((at = 0; at < ${#names[@]}; at += 2)); do told "${names[at]}" "${names[at + 1]}"; done
}

raw() { # the bytes of the request; raw close asks for the end of the connection after it
  local line
  printf '%s %s HTTP/1.1\r\nHost: %s\r\n' "$method" "$path" "$authority"
  for line in "${headers[@]}"; do printf '%s\r\n' "$line"; done
  case $method in
    POST | PUT | PATCH) printf 'Content-Length: %d\r\n' "$(wc -c <"$body")" ;;
    *) [ -s "$body" ] && printf 'Content-Length: %d\r\n' "$(wc -c <"$body")" ;;
  esac
  [ "$1" = close ] && printf 'Connection: close\r\n'
  printf '\r\n'
  cat "$body"
}

cut_off() { # cut_off NUMBER NAME REQUEST before-head|in-head|in-body: the answer does not come whole
  local name=$2 where=$4 line
  "$3"
  split
  case $url in
    https:*)
      # bash has no TLS: curl ends the connection when nobody takes what it got.
      curl_arguments
      with_body
      [ "$where" = in-body ] || arguments+=(-i)
      curl_plain --http1.1 -N "${arguments[@]}" 2>/dev/null | head -c 1 >/dev/null
      ;;
    *)
      raw keep >"$work/$1.raw"
      (
        exec 3<>"/dev/tcp/$host/$port" || exit
        cat "$work/$1.raw" >&3
        case $where in
          before-head) IFS= read -r -t "$patience" -n 1 -u 3 line ;;
          in-head) IFS= read -r -t "$patience" -n 12 -u 3 line ;;
          in-body)
            while IFS= read -r -t "$patience" -u 3 line; do [ "$line" = $'\r' ] && break; done
            IFS= read -r -t "$patience" -n 1 -u 3 line
            ;;
        esac
      ) 2>/dev/null
      ;;
  esac
  printf '  %s: cut off %s\n' "$name" "$where"
}

abort() { # abort NUMBER NAME REQUEST SECONDS: the connection is dropped, answered or not
  local name=$2 after=$4
  "$3"
  split
  case $url in
    https:*)
      curl_arguments
      with_body
      curl_plain --http1.1 --max-time "$after" "${arguments[@]}" >/dev/null 2>&1
      ;;
    *)
      raw keep >"$work/$1.raw"
      (
        exec 3<>"/dev/tcp/$host/$port" || exit
        cat "$work/$1.raw" >&3
        sleep "$after"
      ) 2>/dev/null
      ;;
  esac
  printf '  %s: dropped after %s s\n' "$name" "$after"
}

pipelined() { # pipelined NUMBER NAME REQUEST…: on one connection, without waiting for answers
  local first=$1 names=() at=0 close line answer
  "$3"
  case $url in https:*)
    # bash has no TLS, and curl does not pipeline: one after the other.
    while [ $# -gt 0 ]; do
      call "$1" "$2" "$3"
      shift 3
    done
    return
    ;;
  esac
  split
  : >"$work/$first.raw"
  while [ $# -gt 0 ]; do
    "$3"
    split
    close=keep
    [ $# -gt 3 ] || close=close
    raw "$close" >>"$work/$first.raw"
    names+=("$1" "$2")
    shift 3
  done
  (
    exec 3<>"/dev/tcp/$host/$port" || exit
    cat "$work/$first.raw" >&3
    while IFS= read -r -t "$patience" -u 3 line; do printf '%s\n' "$line"; done
  ) >"$work/$first.answers" 2>/dev/null
  grep -ao 'HTTP/1\.[01] [2-9][0-9][0-9]' "$work/$first.answers" >"$work/$first.statuses"
  while IFS= read -r answer && [ "$at" -lt ${#names[@]} ]; do
    printf '%s\n' "$answer" >"$work/${names[at]}.head"
    at=$((at + 2))
  done <"$work/$first.statuses"
  for ((at = 0; at < ${#names[@]}; at += 2)); do told "${names[at]}" "${names[at + 1]}"; done
}

hook() { # hook NAME COMMAND
  printf '  %s\n' "$1"
  LC_ALL=$locale sh -c "$2" </dev/null >"$work/hook.log" 2>&1 || printf '  the command for %s failed\n' "$1"
}

ready() { # ready REQUEST: until the service takes connections again
  local tries
  "$1"
  split
  for ((tries = 0; tries < 300; tries++)); do
    (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null && return
    sleep 0.2
  done
  stop "nothing listens on $host:$port after the start"
}

count() { # count TAG
  LC_ALL=$locale tag=$1 sh -c "$counter" 2>/dev/null </dev/null | tr -dc 0-9
}

effects() { # effects TAG LEAST MOST ALLOWED: counted until the number rests
  local counted before=none tries
  for ((tries = 0; tries < 15; tries++)); do
    counted=$(count "$1")
    [ "$counted" = "$before" ] && break
    before=$counted
    sleep 0.3
  done
  [ -n "$counted" ] || stop "the effects of $1 cannot be counted"
  printf '  effects: %s, allowed %s\n' "$counted" "$4"
  if [ "$counted" -lt "$2" ] || [ "$counted" -gt "$3" ]; then flaw="$counted effects of $1, allowed $4"; fi
}

# What can be seen without a counter: each prints one line.
see_status() { # see_status NUMBER NAME
  local answer
  answer=$(status "$1")
  printf '%s: %s\n' "$2" "${answer:-no answer}"
}

see_statuses() { # see_statuses NUMBER…
  local number
  printf 'statuses:%s\n' "$(for number in "$@"; do see_status "$number" x; done | sed 's/^x: //' | sort -u |
    while IFS= read -r answer; do printf ' %s,' "$answer"; done)"
}

see_successes() { # see_successes NUMBER…: whether there are different ones
  local number different words='at most one success'
  different=$(for number in "$@"; do
    case $(status "$number") in 2*) cksum <"$work/$number.body" ;; esac
  done | sort -u | wc -l)
  [ "$different" -lt 2 ] || words='several different successes'
  printf '%s\n' "$words"
}

see_same() { # see_same NUMBER NUMBER NAMES: their bodies
  local same=differ
  cmp -s "$work/$1.body" "$work/$2.body" && same='are the same'
  printf 'the bodies of %s %s\n' "$3" "$same"
}

header() { # header NUMBER NAME: its values
  tr -d '\r' <"$work/$1.head" 2>/dev/null | grep -i "^$2:" | cut -d : -f 2- | sed 's/^ *//'
}

see_header() { # see_header NUMBER NAME HEADER START: whether it has one that starts so
  local has=no value
  while IFS= read -r value; do
    case $value in "$4"*) has=yes ;; esac
  done <<<"$(header "$1" "$3" | sed 's/^/+/')"
  printf '%s has %s: %s\n' "$2" "$3" "$has"
}

see_same_header() { # see_same_header NUMBER NUMBER NAMES HEADER
  local same=differs
  [ "$(header "$1" "$4")" = "$(header "$2" "$4")" ] && same='is the same'
  printf '%s of %s %s\n' "$4" "$3" "$same"
}
