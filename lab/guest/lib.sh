# shellcheck shell=bash
# For scripts in a guest: . /opt/lab/lib.sh

# say TEXT: with the seconds since boot.
say() {
  local up
  read -r up _ </proc/uptime
  echo "@@ $up $*"
}

# await CONDITION: until that shell text succeeds, AWAIT_S seconds (60) at most.
await() {
  local end=$((SECONDS + ${AWAIT_S:-60}))
  while ((SECONDS < end)); do
    if eval "$1" 2>/dev/null; then return 0; fi
    sleep 0.05
  done
  echo "not within ${AWAIT_S:-60} s: $1" >&2
  return 1
}

# vf PF NUMBER: the name of a VF's netdev; nothing while it is in another namespace.
vf() { ls "/sys/class/net/$1/device/virtfn$2/net"; }

# wait_carrier NETDEV...: until all of them have a link.
wait_carrier() {
  local name
  for name; do
    await "[[ \$(</sys/class/net/$name/carrier) == 1 ]]"
  done
}
