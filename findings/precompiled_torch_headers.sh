#!/usr/bin/env bash
# torch 2.13.0+cpu (its headers), g++ 12.2, Debian 12: two things about precompiled LibTorch headers.
#
# 1. A source that is empty is not free. With <torch/torch.h> precompiled, g++ still spends seconds of processor time on a
#    source without a single line: the header leaves template instantiations to the end of every source, and they are done
#    again each time, although next to nothing of them reaches the object. Guess: nearly zero. So many small sources cost
#    more than a few large ones even where nothing has to be parsed.
# 2. g++ takes a precompiled header that was made with other -fvisibility than the source has, and says nothing about it
#    (-Winvalid-pch is silent): the classes of the header keep the visibility of the header's own flags. Guess: refused, as
#    with -O or -fPIC that differ. What a user sees instead is -Wattributes, "declared with greater visibility than the type
#    of its field", at each class of his own that holds a LibTorch type.
#
# Fails if either changes. Takes about three minutes of one core.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check --no-deps "torch==2.13.0+cpu" 2>/dev/null ||
  venv/bin/pip install -q --disable-pip-version-check --no-deps "torch==2.13.0"
torch=$(echo venv/lib/python3*/site-packages/torch)
grep -h "__version__ = " "$torch/version.py"
g++ --version | head -n 1
includes=(-isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include")

# precompile FOLDER HEADER FLAGS…
precompile() {
  local folder=$1 header=$2
  shift 2
  mkdir "$folder"
  echo "#include <$header>" >"$folder/all.h"
  g++ -std=c++20 -O2 "${includes[@]}" "$@" -x c++-header "$folder/all.h" -o "$folder/all.h.gch"
}

# seconds FOLDER SOURCE: processor time of one compilation, the least of three.
seconds() {
  local least=1000 one
  for _ in 1 2 3; do
    one=$( (TIMEFORMAT=%U; time g++ -std=c++20 -O2 "${includes[@]}" -Winvalid-pch -include "$1/all.h" -c "$2" -o one.o) 2>&1 | tail -n 1)
    least=$(awk -v a="$least" -v b="$one" 'BEGIN {print (b < a) ? b : a}')
  done
  echo "$least"
}

: >empty.cpp
precompile everything torch/torch.h
precompile tensors ATen/core/Tensor.h
everything=$(seconds everything empty.cpp)
size=$(size -A one.o | awk '$1 == ".text" {print $2}')
tensors=$(seconds tensors empty.cpp)
echo "an empty source: $everything s with torch/torch.h precompiled ($size bytes of code), $tensors s with ATen/core/Tensor.h"
awk -v a="$everything" -v b="$tensors" 'BEGIN {exit !(a > 1.5 && a > 3 * b)}' || { echo "CHANGED: it is cheap now"; exit 1; }

precompile hidden ATen/core/Tensor.h -fvisibility=hidden
cat >user.cpp <<'EOF'
#include <vector>
struct Mine {
  std::vector<at::Tensor> tensors;
};
Mine mine;
EOF
said=$(g++ -std=c++20 -O2 "${includes[@]}" -Winvalid-pch -include hidden/all.h -c user.cpp -o user.o 2>&1)
echo "$said"
case $said in *invalid-pch*) echo "CHANGED: the header is refused"; exit 1;; esac
case $said in *"greater visibility"*) ;; *) echo "CHANGED: nothing is said"; exit 1;; esac
said=$(g++ -std=c++20 -O0 "${includes[@]}" -Winvalid-pch -include hidden/all.h -c user.cpp -o user.o 2>&1)
case $said in *"not used"*) echo "with -O0 the same header is refused, and said to be";; *) echo "CHANGED: -O0 is taken"; exit 1;; esac
echo "as described"
