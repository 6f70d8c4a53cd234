# shellcheck shell=bash
# Debian packages by two ways: installed, or unpacked under .cache/debian, which needs no privilege.
# Sourced after say.sh, from the root of the repository. Scripts that run beside each other take turns.

unpacked=.cache/debian

# apt_install PACKAGE...: install on this machine; fails where that is not ours to do. A machine that has just been
# started may be installing updates: they are waited for, five minutes at most.
apt_install() {
  _apt_turn _apt_install "$@"
}

_apt_install() {
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  export DEBIAN_FRONTEND=noninteractive
  local install=(apt-get --option DPkg::Lock::Timeout=300 install --yes --no-install-recommends "$@")
  "${install[@]}" || { apt-get update && "${install[@]}"; }
}

# apt_unpack PACKAGE...: fetch the packages and what they need that is not installed, and unpack all of it.
apt_unpack() {
  _apt_turn _apt_unpack "$@"
}

_apt_unpack() {
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  _apt_fetch "$@" || { _apt_use_own_lists && _apt_fetch "$@"; } || return 1
  local archive
  for archive in "$unpacked"/archives/*.deb; do
    [[ -e $archive ]] || break # everything is installed
    dpkg-deb --extract "$archive" "$unpacked" || return 1
  done
}

# Unlocked, and not closed alone: a service that a package starts has the file open as well.
_apt_turn() {
  local lock status=0
  exec {lock}>.cache/apt.lock
  flock "$lock"
  "$@" || status=$?
  flock --unlock "$lock"
  exec {lock}>&-
  return "$status"
}

_apt_options=()

# A machine without package lists, or with old ones that we may not renew: keep lists of our own.
_apt_use_own_lists() {
  local state=$PWD/.cache/apt
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  _apt_options=(
    -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache"
    -o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=1
  )
  apt-get "${_apt_options[@]}" update
}

_apt_fetch() {
  local plan packages
  plan=$(apt-get "${_apt_options[@]}" --simulate --no-install-recommends install "$@") || return 1
  mapfile -t packages < <(sed -nE 's/^Inst ([^ ]+) (\[[^]]*\] )?\(([^ ]+) .*/\1=\3/p' <<<"$plan")
  mkdir -p "$unpacked/archives"
  rm -f "$unpacked"/archives/*.deb
  ((${#packages[@]})) || return 0
  (cd "$unpacked/archives" && apt-get "${_apt_options[@]}" download "${packages[@]}")
}
