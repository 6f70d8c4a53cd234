# shellcheck shell=bash
# Whether the compiler links what cni/Makefile makes, and what brings it. Sourced.

# links_statically: try one small program: headers and the static part of libc are packages of their own in many places.
links_statically() {
  command -v cc >/dev/null || return 1
  local program status=0
  program=$(mktemp)
  # No pipe: a compiler that ends before it has read everything would end the writer by SIGPIPE, and that would count.
  cc -static-pie -x c -o "$program" - 2>/dev/null <<<$'#include <stdio.h>\nint main(void) { return puts("") < 0; }' ||
    status=$?
  rm -f "$program"
  return "$status"
}

# install_compiler FILE: the command that brings compiler, headers and static libc on a system, by its os-release(5).
install_compiler() {
  local ID='' ID_LIKE=''
  # shellcheck disable=SC1090 # os-release is a shell file
  [[ ! -e $1 ]] || source "$1"
  case " $ID $ID_LIKE " in
  *" debian "* | *" ubuntu "*) echo "apt-get install gcc libc6-dev make" ;;
  *" fedora "* | *" rhel "*) echo "dnf install gcc make glibc-devel glibc-static" ;;
  *suse*) echo "zypper install gcc make glibc-devel glibc-devel-static" ;;
  *" arch "*) echo "pacman -S gcc make" ;;
  *" alpine "*) echo "apk add gcc make musl-dev linux-headers" ;;
  *) echo "your package manager: a C compiler, make, and the headers and static library of libc" ;;
  esac
}
