#!/bin/bash
# Unpacks NVIDIA Nsight Systems (with --ncu also Nsight Compute) from Debian's non-free component into a folder of its own,
# so that the real tools run where there is no GPU and no CUDA: nothing is installed in the system, no root is needed.
#   .ci/install-nsight.sh [--ncu] [--release trixie|bookworm] [PREFIX]
# trixie: Nsight Systems 2023.4, Nsight Compute 2024.1; bookworm: 2022.4 and 2022.3. PREFIX is ~/.cache/gkestimator/
# nsight-RELEASE unless given ($XDG_CACHE_HOME counts), where gkestimator looks for the tools by itself. A folder that is
# complete is left as it is. Prints PREFIX; PREFIX/bin holds nsys (and ncu). Status 0 done, 1 not possible here, 2 usage.
# Mirror: that of this machine's apt sources, or $GKEST_DEBIAN_MIRROR where those are not Debian's.
set -euo pipefail
export LC_ALL=C

fail() { echo "install-nsight: $2" >&2; exit "$1"; }
newest() { printf '%s\n' "$@" | sort -V | tail -n 1; }

ncu=0 release=trixie prefix=
while (($#)); do
  case $1 in
    --ncu) ncu=1 ;;
    --release) (($# > 1)) || fail 2 "--release needs trixie or bookworm"; release=$2; shift ;;
    --release=*) release=${1#*=} ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail 2 "unknown option $1 (known: --ncu, --release, --help)" ;;
    *) [[ -z $prefix ]] || fail 2 "one PREFIX expected, found $prefix and $1"; prefix=$1 ;;
  esac
  shift
done
[[ $release == trixie || $release == bookworm ]] || fail 2 "release $release: expected trixie or bookworm"
prefix=$(realpath -m "${prefix:-${XDG_CACHE_HOME:-$HOME/.cache}/gkestimator/nsight-$release}")

tools=(nsys)
((ncu)) && tools+=(ncu)
# A killed nsys of 2022.4 leaves its lock in shared memory, and every later one waits for it in vain ("Agent launcher
# failed"). One of ours that no process has mapped is nobody's.
for lock in /dev/shm/NSys-[0-9]*; do
  if [[ -O $lock ]] && [[ -n $(find "$lock" -mmin +10) ]] && ! grep -qsF "$lock" /proc/[0-9]*/maps; then rm -f "$lock"; fi
done
works() { # does PREFIX $1 hold tools that answer, and an nsys that makes reports and exports them?
  local tool probe status=0
  for tool in "${tools[@]}"; do
    timeout 60 "$1/bin/$tool" --version >/dev/null 2>&1 || { echo "$1/bin/$tool does not answer" >&2; return 1; }
  done
  # nsys ends with status 0 when its importer is missing: only what it made counts.
  probe=$(mktemp -d)
  timeout 120 "$1/bin/nsys" profile --trace=nvtx --sample=none --cpuctxsw=none --output="$probe/a" true >"$probe/log" 2>&1 || true
  timeout 120 "$1/bin/nsys" export --type=sqlite --lazy=false --quiet=true --output="$probe/a.sqlite" "$probe/a.nsys-rep" >>"$probe/log" 2>&1 || true
  if [[ ! -s $probe/a.sqlite ]]; then
    echo "nsys made no capture; it said: $(tr '\r' '\n' <"$probe/log" | grep -v '^ *$' | tail -n 1)" >&2
    status=1
  fi
  rm -rf "$probe"
  return $status
}

if [[ -e $prefix/complete ]]; then
  if { ((!ncu)) || [[ -x $prefix/bin/ncu ]]; } && works "$prefix"; then
    echo "$prefix"
    exit 0
  fi
  echo "install-nsight: $prefix is made again" >&2
elif [[ -e $prefix ]] && [[ -n $(ls -A "$prefix" 2>/dev/null) ]]; then
  fail 1 "$prefix exists and was not made by this script; name another folder"
fi

[[ $(uname -s)-$(uname -m) == Linux-x86_64 ]] || fail 1 "Debian has Nsight for Linux on x86_64 alone; this is $(uname -s) on $(uname -m)"
for program in apt-get dpkg ldconfig; do
  PATH=$PATH:/sbin:/usr/sbin command -v "$program" >/dev/null || fail 1 "$program not found; this machine is not a Debian"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -r $keyring ]] || fail 1 "$keyring not found: install debian-archive-keyring"
mirror=${GKEST_DEBIAN_MIRROR:-}
if [[ -z $mirror ]]; then
  mirror=$({ grep -hsE '^(URIs:|deb )' /etc/apt/sources.list /etc/apt/sources.list.d/* || true; } |
    sed -nE 's,.*(https?://[^ ]+/debian)/?( .*)?$,\1,p' | head -n 1)
fi
[[ -n $mirror ]] || fail 1 "no Debian mirror in this machine's apt sources, and GKEST_DEBIAN_MIRROR is not set"

# Made aside, checked, then moved into place: a killed run leaves nothing that looks complete.
mkdir -p "$(dirname "$prefix")"
aside=$(mktemp -d "$prefix.aside.XXXXXX")
trap 'rm -rf "$aside"' EXIT
mkdir -p "$aside"/{apt/lists/partial,apt/archives/partial,debs,root,shim,bin}
echo "deb [signed-by=$keyring] $mirror $release contrib non-free" >"$aside/apt/sources.list"
cat >"$aside/apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$aside/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::Lists "$aside/apt/lists";
Dir::Cache::archives "$aside/apt/archives";
APT::Sandbox::User "$(id -un)";
CONF
want=(nsight-systems nsight-systems-target)
((ncu)) && want+=(nsight-compute nsight-compute-target)
echo "install-nsight: fetching ${want[*]} of Debian $release" >&2
apt-get -qq -c "$aside/apt/apt.conf" update || fail 1 "the mirror's package list cannot be fetched"
(cd "$aside/debs" && apt-get -qq -c ../apt/apt.conf download "${want[@]}") || fail 1 "the packages cannot be fetched"

for package in "$aside"/debs/*.deb; do dpkg -x "$package" "$aside/root"; done
# nsys looks for libssh under a name that Debian gives to development packages alone.
ssh=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk '/libssh\.so\.4/ {print $NF; exit}')
if [[ -z $ssh ]]; then
  (cd "$aside/debs" && apt-get -qq download libssh-4) || fail 1 "libssh-4 is not installed and cannot be fetched"
  dpkg -x "$aside"/debs/libssh-4_*.deb "$aside/root"
  ssh=$(newest "$(find "$aside/root" -name 'libssh.so.4*' -type f)")
fi
cp -L "$ssh" "$aside/shim/libssh.so"
ln -s libssh.so "$aside/shim/libssh.so.4"

# Debian splits what NVIDIA ships as one folder; without the link no report is made (and nsys still ends with 0).
target=root/usr/lib/x86_64-linux-gnu/nsight-systems
ln -sfn ../../nsight-systems/host-linux-x64 "$aside/$target/host-linux-x64"
host=$aside/root/usr/lib/nsight-systems/host-linux-x64
mkdir -p "$host/python/lib"
cp -n "$aside/$target"/target-linux-x64/python/lib/*.py "$host/python/lib/" 2>/dev/null || true
wrapper() { # bin/$1 starts $2, a path below PREFIX, wherever PREFIX is moved to
  printf '#!/bin/sh\nhere=$(dirname "$(dirname "$(readlink -f "$0")")")\n%sexec "$here/%s" "$@"\n' "$3" "$2" >"$aside/bin/$1"
  chmod +x "$aside/bin/$1"
}
wrapper nsys "$target/target-linux-x64/nsys" 'export LD_LIBRARY_PATH="$here/shim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
'
if ((ncu)); then
  found=$(newest "$(find "$aside/root" -type f -name ncu -perm -u+x)")
  [[ -n $found ]] || fail 1 "the package holds no ncu"
  wrapper ncu "${found#"$aside/"}" ''
fi
rm -rf "$aside/debs" "$aside/apt"
works "$aside" || fail 1 "what was unpacked does not work"
touch "$aside/complete"
chmod 755 "$aside"
rm -rf "$prefix"
mv "$aside" "$prefix"
trap - EXIT
timeout 60 "$prefix/bin/nsys" --version | tail -n 1 >&2
echo "$prefix"
