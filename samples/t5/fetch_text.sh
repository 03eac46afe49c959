#!/bin/sh
# samples/t5/fetch_text.sh: puts the demo's text into the cache folder and prints its path.
#
# The text is the Jargon File (public domain, 1.7 MB of English), taken out of Debian's package
# `jargon-text` without installing it. What it does is said on stderr; stdout has the path only.
set -eu

folder="${XDG_CACHE_HOME:-$HOME/.cache}/smp/data"
text="$folder/jargon.txt"
if [ -s "$text" ]; then
  echo "$text"
  exit 0
fi

fail() {
  echo "smp: $1; give a text of your own with --data FILE" >&2
  exit 1
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  fail "the Jargon File comes out of a Debian package, and this is not a Debian machine"

echo "smp: fetching the Jargon File (Debian package jargon-text, 0.7 MB) into $folder" >&2
mkdir -p "$folder"
work=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
# The sandbox user of apt may not write here; apt would only warn about it.
apt-get -qq -o APT::Sandbox::User="$(id -un)" download jargon-text >apt.log 2>&1 ||
  fail "apt-get download jargon-text failed: $(tail -n 1 apt.log)"
# dpkg-deb has no filters of its own, so this works where dpkg drops /usr/share/doc.
dpkg-deb -x jargon-text_*.deb package
gzip -dc package/usr/share/doc/jargon-text/jargon.txt.gz >jargon.txt
mv jargon.txt "$text"
echo "$text"
