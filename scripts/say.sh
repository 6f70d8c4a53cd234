# shellcheck shell=bash
# How the set-up scripts talk: one line a step, everything else into a log that is shown when a step fails.
# Sourced, from the root of the repository.

setup_log=.cache/${0##*/}.log # of each script its own: some run beside each other
no_network='Temporary failure (in name )?resol|Name or service not known|Network is unreachable|Could not resolve'
mkdir -p .cache

# quietly SENTENCE COMMAND...: announce, run without stdin; on failure show what the command said and return its status.
quietly() {
  local sentence=$1 status=0
  shift
  printf '%s\n' "$sentence"
  "$@" >"$setup_log" 2>&1 </dev/null || status=$?
  if ((status)) && grep -qE "$no_network" "$setup_log"; then
    printf 'setup: nothing could be fetched: there is no network, or it needs a proxy (%s)\n' "$setup_log" >&2
  elif ((status)); then
    tail -n 25 "$setup_log" | sed 's/^/  | /' >&2
  fi
  return "$status"
}

# missing SENTENCE...: say on stderr what is missing and what to do about it, and give up.
missing() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}
