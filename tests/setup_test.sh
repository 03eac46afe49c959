#!/usr/bin/env bash
# setup_test.sh SOURCE SCRATCH: what the script ./smp does on machines unlike this one: other releases, without a
# network, without root, with an interrupted installation. apt, pip, the compiler and mpirun are stubs here, which
# write down how they were called.
set -euo pipefail

source=$1
work=$2
rm -rf "$work"
mkdir -p "$work/stubs" "$work/root/samples/t5" "$work/root/perf"
cp "$source/smp" "$work/root/"
cp -r "$source/cmake" "$work/root/"
cp -r "$source/perf/ranks" "$source/perf/peers" "$work/root/perf/"
unset SMP_TORCH_DIR SMP_BUILT CMAKE_PREFIX_PATH
real_cmake=$(command -v cmake)
export real_cmake

# ---------------------------------------------------------------------------------------------------------
# Stubs. $state holds the machine: installed and apt (lines "NAME VERSION"), offline, no_root, calls.

stub() {
  { echo '#!/usr/bin/env bash'; echo 'set -eu'; cat; } >"$work/stubs/$1"
  chmod +x "$work/stubs/$1"
}

stub dpkg-query <<'EOF'
sed 's/^/ii  /' "$state/installed"
EOF
stub apt-cache <<'EOF'
case $1 in
  pkgnames) grep -o "^$2[^ ]*" "$state/apt" || true;;
  policy) sed -n "s/^$2 \(.*\)/$2:\n  Installed: (none)\n  Candidate: \1/p" "$state/apt";;
esac
EOF
stub apt-get <<'EOF'
echo "apt-get $*" >>"$state/calls"
[ ! -e "$state/offline" ] || { echo "E: Temporary failure resolving"; exit 100; }
case " $* " in
  *" update "*) [ ! -e "$state/apt_after_update" ] || cp "$state/apt_after_update" "$state/apt";;
  *" install "*) for word; do grep "^$word " "$state/apt" >>"$state/installed" || true; done;;
esac
EOF
stub sudo <<'EOF'
echo "sudo: a password is required" >&2
exit 1
EOF
stub id <<'EOF'
[ -e "$state/no_root" ] && [ "$*" = -u ] && echo 1000 || echo 0
EOF
stub getent <<'EOF'
echo "someone:x:1000:1000::$state/home:/bin/sh"
EOF
stub python3 <<'EOF'
case "$*" in
  "-c import ensurepip") exit 0;;
  "-m venv "*) mkdir -p "$3/bin" "$3/lib/python3.11/site-packages/torch"; cp "$state/../stubs/pip" "$3/bin/pip"
    cp "$state/../stubs/python_of_venv" "$3/bin/python";;
  *) exit 1;;
esac
EOF
stub python_of_venv <<'EOF'
[ "$1" != -c ] || exec echo "$(dirname "$0")/../lib/python3.11/site-packages"
echo "python $*" >>"$state/calls"
EOF
stub pip <<'EOF'
echo "pip $*" >>"$state/calls"
torch=$(dirname "$0")/../lib/python3.11/site-packages/torch
[ ! -e "$state/offline" ] || { echo "ERROR: No matching distribution found for torch"; exit 1; }
if [ -e "$state/interrupt" ]; then
  mkdir -p "$torch/lib"
  touch "$torch/lib/libtorch_cpu.so"
  kill -KILL "$(cat "$state/smp.pid")"
  sleep 1
fi
"$state/../stubs/fake_torch" "$torch"
EOF
stub fake_torch <<'EOF'
mkdir -p "$1/lib" "$1/include/torch/headeronly" "$1/include/torch/csrc/api/include/torch"
touch "$1/lib/libtorch_cpu.so" "$1/lib/libc10.so" "$1/include/torch/csrc/api/include/torch/torch.h"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 13\n#define TORCH_VERSION_PATCH 0\n' \
  >"$1/include/torch/headeronly/version.h"
EOF
stub cmake <<'EOF'
[ "$1" != -P ] || exec "$real_cmake" "$@"
printf 'cmake'; printf ' <%s>' "$@"; echo
{ printf 'cmake'; printf ' <%s>' "$@"; echo; } >>"$state/calls"
if [ "$1" = -S ]; then
  folder=$2/build/$4
  touch "$folder/build.ninja"
  for word; do case $word in -DSMP_BUILD_TESTS=*) echo "SMP_BUILD_TESTS:BOOL=${word#*=}" >"$folder/CMakeCache.txt";; esac; done
fi
EOF
stub nproc <<'EOF'
cat "$state/cores" 2>/dev/null || echo 4
EOF
for name in ninja ctest mpirun; do
  stub "$name" <<'EOF'
echo "$(basename "$0") $*" >>"$state/calls"
EOF
done
stub doxygen <<'EOF'
echo "doxygen $* for $SMP_DOCS in $PWD" >>"$state/calls"
[ ! -e "$state/mistakes" ] || { echo "step.h:3: error: unknown command"; exit 1; }
EOF
{ echo '#!/bin/sh'; echo '[ ! -e "$state/offline" ] || { echo "smp: apt-get download jargon-text failed" >&2; exit 1; }'; } \
  >"$work/root/samples/t5/fetch_text.sh"
chmod +x "$work/root/samples/t5/fetch_text.sh"

common="g++ 1
cmake 1
ninja-build 1
ccache 1
openmpi-bin 1
libopenmpi-dev 1
libucx-dev 1
libfabric-dev 1
protobuf-compiler 1
libprotobuf-dev 1
libspdlog-dev 1
libfmt-dev 1
nlohmann-json3-dev 1
libcli11-dev 1
libxxhash-dev 1
libsentencepiece-dev 1
libyaml-cpp-dev 1"
fetching="python3 1
python3-venv 1"
debian_12="libboost-fiber-dev 1.74.0.3
libboost-context-dev 1.74.0.3
libboost-fiber1.74-dev 1.74.0+ds1-21
libboost-fiber1.81-dev 1.81.0-5+deb12u1
libboost-context1.81-dev 1.81.0-5+deb12u1
libboost-fiber1.81.0 1.81.0-5+deb12u1"
ubuntu_24="libboost-fiber-dev 1.83.0.1ubuntu2
libboost-context-dev 1.83.0.1ubuntu2
libboost-fiber1.83-dev 1.83.0-2.1ubuntu3
libboost-context1.83-dev 1.83.0-2.1ubuntu3"
testing="libgtest-dev 1
libgmock-dev 1
librapidcheck-dev 1"

# ---------------------------------------------------------------------------------------------------------
# Checks

failures=0
path=$work/stubs:$PATH

# machine NAME INSTALLED APT: a fresh machine, in $state.
machine() {
  name=$1
  state=$work/$1
  export state
  mkdir -p "$state"
  printf '%s\n' "$2" >"$state/installed"
  printf '%s\n' "$3" >"$state/apt"
  : >"$state/calls"
  rm -rf "$work/root/build"
}

# Runs ./smp on the machine: sets said and status.
smp() {
  status=0
  said=$(HOME=$state XDG_CACHE_HOME=$state/cache PATH=$path \
    bash -c 'echo $$ >"$state/smp.pid"; exec "$@"' smp "$work/root/smp" "$@" 2>&1) || status=$?
}

check() {
  "$@" || {
    failures=$((failures + 1))
    printf '%s: failed: %s\n--- said (status %s):\n%s\n--- called:\n%s\n' "$name" "$*" "$status" "$said" "$(cat "$state/calls")"
  }
}

says() { [[ $said == *"$1"* ]]; }
called() { grep -qF -- "$1" "$state/calls"; }
not() { ! "$@"; }
ends_with() { [ "$status" = "$1" ]; }

machine bare_debian_12 "" ""
printf '%s\n' "$common" "$fetching" "$debian_12" "$testing" >"$state/apt_after_update"
smp demo
check ends_with 0
check called "libboost-fiber1.81-dev libboost-context1.81-dev"
check not called "libboost-fiber-dev"
check not called "libgtest-dev"
check called "<-DSMP_BUILD_TESTS=OFF>"
check called "-n 4"
check says "LibTorch 2.13.0 in $state/cache/smp/venv-torch-2.13.0/lib/python3.11/site-packages/torch (put there by ./smp)"
smp demo --help
check not says "LibTorch"   # it is said once
check called "-n 1"
: >"$state/calls"
smp demo
check not called "<-S>"   # it is configured once
touch "$work/root/CMakePresets.json"
smp demo
check called "<-S>"
smp test -R nothing
check ends_with 0
check called "libgtest-dev libgmock-dev librapidcheck-dev"
check called "<-DSMP_BUILD_TESTS=ON>"
check called " smp_quick_tests"
check called "ctest --test-dir $work/root/build/release --output-on-failure -j 4 -L ^quick\$ -R nothing"
check says "./smp test --all"
: >"$state/calls"
smp test --all -R nothing
check ends_with 0
check not called "smp_quick_tests"
check called "ctest --test-dir $work/root/build/release --output-on-failure -j 4 -R nothing"
check not says "--all"

machine ubuntu_24_04 "" "$common
$fetching
$ubuntu_24"
smp build
check ends_with 1   # its archive, as this test tells it, has no test packages
check says "apt knows nothing of libgtest-dev libgmock-dev librapidcheck-dev"
check not called "ninja"
smp demo
check ends_with 0
check called "libboost-fiber-dev libboost-context-dev"

machine own_boost "$common
libboost-fiber1.83-dev 1.83.0-2
libboost-context1.83-dev 1.83.0-2" "$fetching
$debian_12"
smp demo
check ends_with 0
check called "--force-unsafe-io python3 python3-venv"

machine offline "cmake 1" "$debian_12"
touch "$state/offline"
smp demo
check ends_with 1
check says "sudo apt-get install --no-install-recommends g++ "
check says "LibTorch: pip cannot install it now"
check says "PIP_FIND_LINKS"
check says "a text to train on"
check not called "ninja"
check not called "<-S>"
check not test -e "$state/cache/smp/venv-torch-2.13.0"

# As the one before, and CMake, which looks for LibTorch, is not there either.
machine offline_without_cmake "" "$debian_12"
touch "$state/offline"
mkdir "$state/bin"
ln -s /usr/bin/* /bin/* "$work"/stubs/* "$state/bin/" 2>/dev/null || true
ln -sf "$work"/stubs/* "$state/bin/"
rm -f "$state/bin/cmake"
path=$state/bin
smp demo
path=$work/stubs:$PATH
check ends_with 1
check says "sudo apt-get install --no-install-recommends g++ cmake"
check says "python3-venv"
check says "LibTorch: looked for"
check says "a text to train on"

machine no_root "" "$common
$fetching
$debian_12"
touch "$state/no_root"
smp demo
check ends_with 1
check says "which only root may install: sudo apt-get install --no-install-recommends g++"
check not called "ninja"

machine interrupted "$common
$fetching
$debian_12" ""
touch "$state/interrupt"
smp demo
check ends_with 137
check test -e "$state/cache/smp/venv-torch-2.13.0.part"
rm "$state/interrupt"
smp demo
check ends_with 0
check test -e "$state/cache/smp/venv-torch-2.13.0"
check not test -e "$state/cache/smp/venv-torch-2.13.0.part"

machine half_a_torch "$common
$fetching
$debian_12" ""
torch=$state/cache/smp/venv-torch-2.12.0/lib/python3.11/site-packages/torch
"$work/stubs/fake_torch" "$torch"
rm "$torch/lib/libc10.so"
smp demo
check ends_with 0
check says "not taken: $torch: it is not complete: there is no libc10.so"
check called "site-packages/torch>"
check called "pip install"

machine spaces "$common
$debian_12" ""
"$work/stubs/fake_torch" "$state/lib torch"
export SMP_TORCH_DIR="$state/lib torch"
smp demo --steps 3
check ends_with 0
check says "LibTorch 2.13.0 in $state/lib torch (named by SMP_TORCH_DIR)"
check called "<-DSMP_TORCH_DIR=$state/lib torch>"
smp install "$state/my prefix"
check ends_with 0
check called "smp smp-cli"
check called "<--prefix> <$state/my prefix>"
check says "-DCMAKE_PREFIX_PATH=\"$state/my prefix\""
SMP_TORCH_DIR=$state
smp demo
check ends_with 1
check says "SMP_TORCH_DIR names $state, but it holds no LibTorch"
unset SMP_TORCH_DIR

# The pages of the interface need neither compiler nor LibTorch.
machine docs "" "doxygen 1.9.4"
smp docs
check ends_with 0
check called "--force-unsafe-io doxygen"
check called "doxygen docs/doxygen/Doxyfile for $work/root/build/docs in $work/root"
check says "made $work/root/build/docs/api/index.html"
touch "$state/mistakes"
smp docs
check ends_with 1
check says "step.h:3: error: unknown command"
smp docs extra
check says "docs takes no arguments, not 'extra'"

# How perf starts its programs: as perf/ranks says.
machine perf "$common
$fetching
$debian_12" ""
smp perf remote_call
check ends_with 0
check called "-n 2"
check called "perf/perf remote_call"
check not called "-n 4"
smp perf simulator --ranks=3 --steps 1
check called "-n 3"
check called "perf/perf simulator --steps 1"
: >"$state/calls"
smp perf bubble
check called "-n 2"
check called "-n 4"
: >"$state/calls"
SMP_PERF_BRIEF=1 smp perf bubble
check called "-n 2"
check not called "-n 4"
# The peers have Python packages of their own, which are installed once; DeepSpeed is left out of a brief run.
: >"$state/calls"
SMP_PERF_BRIEF=1 smp perf peers --parts call
check ends_with 0
check called "peers/requirements.txt"
check not called "peers/deepspeed.txt"
check called "compare.py --build"
check called "--parts call"
: >"$state/calls"
smp perf dp
check called "--program dp"
check not called "peers/deepspeed.txt"
: >"$state/calls"
smp perf peers
check not called "peers/requirements.txt"
check called "peers/deepspeed.txt"
smp perf nothing
check ends_with 1
check says "perf takes one of the programs backward bubble d2d dp executor"

# The demo takes a rank for each core, but neither one nor dozens, unless it is told how many.
for cores_and_ranks in "1 2" "2 2" "3 3" "64 8"; do
  echo "${cores_and_ranks% *}" >"$state/cores"
  : >"$state/calls"
  smp demo
  check called "-n ${cores_and_ranks#* } "
done
smp demo --ranks 5
check called "-n 5 "
rm "$state/cores"

# With degrees the demo is another program, on as many ranks as they make.
: >"$state/calls"
smp demo --dp 2 --tp=3 --steps 3
check ends_with 0
check called " gpt"
check called "-n 6 $work/root/build/release/samples/gpt/gpt --dp 2 --tp=3 --steps 3"
: >"$state/calls"
smp demo --dp 2 --tp 0
check ends_with 1
check says "--tp takes a number from 1 to 9999, not '0'"
smp demo --dp 2 --tp
check ends_with 1
check says "--tp takes a number from 1 to 9999, not ''"
smp demo --ranks 4 --pp 2
check ends_with 1
check says "--ranks 4, but --pp, --tp and --dp make 2"
for odd in "demo --ranks alone" "demo --ranks=0" "perf bubble --ranks x"; do
  smp $odd
  check ends_with 1
  check says "--ranks takes a positive number, not '${odd##*[ =]}'"
done
smp build relase
check ends_with 1
check says "build takes release, dev, asan, asan_d2d or tsan, not 'relase'"
smp build dev tsan
check ends_with 1
check says "build takes one preset, not 'dev tsan'"
for command in test build install docs perf; do
  for help in --help -h; do
    smp $command $help
    check ends_with 0
    check says "usage: ./smp $command "
  done
done
check says "  backward bubble "
smp install
check ends_with 1
check says "install takes one folder"
check not called "mpirun"
check not called "ninja"

# Through a link, without HOME, with a command that there is not, and two at once.
machine odd_calls "$common
$fetching
$debian_12" ""
mkdir -p "$state/links"
ln -s "$work/root/smp" "$state/links/train"
real=$work/root/smp
smp_through() {
  status=0
  said=$(XDG_CACHE_HOME=$state/cache PATH=$path "$@" 2>&1) || status=$?
}
smp_through "$state/links/train" demo
check ends_with 0
check called "<-S> <$work/root>"
smp_through env -u HOME -u XDG_CACHE_HOME "$real" demo
check ends_with 0
check test -d "$state/home/.cache/smp"
for folder in /proc/nothing /dev/null; do
  smp_through env -u XDG_CACHE_HOME HOME=$folder "$real" demo
  check ends_with 1
  check test "$said" = "smp: the cache folder $folder/.cache/smp cannot be written; name one that can: export XDG_CACHE_HOME=/path/to/folder"
done
rm -rf "$work/root/build"
: >"$work/root/build"
smp_through "$real" demo
rm "$work/root/build"
check ends_with 1
check says "$work/root/build/release cannot be written, and what is built goes there: copy the source folder"
smp_through "$real" nonsense
check ends_with 2
check says "there is no command 'nonsense'"
check not says "usage:"
: >"$state/calls"
mkdir -p "$work/root/build/release"
asks_for_lock() {
  local pid
  pid=$(cat "$state/smp.pid" 2>/dev/null) || return 1
  grep -ls "^PPid:.*[^0-9]$pid$" /proc/[0-9]*/status | sed 's/status$/comm/' | xargs -r grep -qsx flock
}
(
  exec 9>"$work/root/build/release/lock"
  flock 9
  : >"$state/locked"
  for _ in $(seq 300); do ! asks_for_lock || break; sleep 0.1; done
  echo "the other one is done" >>"$state/calls"
) &
while [ ! -e "$state/locked" ]; do sleep 0.05; done
smp demo
wait
check ends_with 0
check says "waiting for another ./smp, which builds in $work/root/build/release"
check test "$(head -n 1 "$state/calls")" = "the other one is done"

[ $failures = 0 ] || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
