# shellcheck shell=bash
# Sourced by the scripts that a newcomer starts on a bare Debian.
#   install_missing PACKAGE...    installs those that are not installed, and nothing else; as root or with sudo

install_missing() {
  local missing=() package as_root=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "error: not root, no sudo, and these packages are missing: ${missing[*]}" >&2
      return 1
    }
    as_root=(sudo)
  fi
  echo "== installing ${missing[*]}"
  local apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -qq -o Dpkg::Use-Pty=0)
  local log
  log=$(mktemp)
  "${apt[@]}" update >"$log" 2>&1 || true  # one bad source of several: what is known may do
  if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "error: apt-get could not install: ${missing[*]}" >&2
    return 1
  fi
  rm -f "$log"
}
