# Installs Python $python at $place below $root with uv, without root, and prints lines of JSON after $mark; software.py
# sets these variables. In braces, so that the shell reads all of it before anything runs.
{
# uv 0.11.12 for x86_64. Source of the hash: astral-sh/setup-uv on GitHub, src/download/checksum/known-checksums.ts.
url=https://github.com/astral-sh/uv/releases/download/0.11.12/uv-x86_64-unknown-linux-musl.tar.gz
sha256=591a7557f5ba7e51565f338dd4c50cebc12820ec2ebb8403a4304685f8d53ab9
program=uv-x86_64-unknown-linux-musl/uv
reply() { printf '{"%s": "%s"}\n' "$1" "$(printf %s "$2" | tr -d '\\"' | tr -c ' -~' ' ' | tail -c 400)"; }
fail() { if [ -n "$part" ]; then rm -rf "$part"; fi; reply failed "$1"; exit 0; }
has() { command -v "$1" >/dev/null 2>&1; }
fetch() {
  if has curl; then curl -fsSL --retry 2 --connect-timeout 20 -o "$2" "$1"
  elif has wget; then wget -q -T 20 -O "$2" "$1"
  elif has python3; then python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' "$1" "$2"
  else echo "found neither curl nor wget nor python3. As root: apt-get install curl"; return 1
  fi
}
digest() {
  if has sha256sum; then sha256sum "$1"
  elif has shasum; then shasum -a 256 "$1"
  elif has openssl; then openssl dgst -r -sha256 "$1"
  else echo "found neither sha256sum nor shasum nor openssl"
  fi
}
echo "$mark"
part=
case "$(uname -s) $(uname -m)" in
  "Linux x86_64" | "Linux amd64") ;;
  *) fail "Python can be installed on Linux x86_64 only, not on $(uname -s) $(uname -m)" ;;
esac
for tool in gzip tar; do
  has $tool || fail "$tool was not found. As root: apt-get install $tool"
done
mkdir -p "$root" || fail "cannot create $root"
free=$(df -Pk "$root" | awk 'NR == 2 {print $4}' 2>/dev/null)
if [ -n "$free" ] && [ "$free" -lt $((megabytes * 1000)) ]; then
  fail "installing Python needs $megabytes MB below $root, but only $((free / 1000)) MB are free"
fi
if [ -x "$place/bin/python3" ]; then reply python "$place/bin/python3"; exit 0; fi
part=$(mktemp -d "$root/part-XXXXXX") || fail "cannot create a folder in $root"
output=$(fetch "$url" "$part/uv.tar.gz" 2>&1) || fail "uv could not be downloaded from $url: $output"
found=$(digest "$part/uv.tar.gz" 2>&1)
[ "${found%% *}" = "$sha256" ] || fail "the digest of uv is not $sha256: ${found%% /*}"
gzip -dc "$part/uv.tar.gz" | tar -xOf - "$program" > "$part/uv" && [ -s "$part/uv" ] || fail "uv could not be unpacked"
rm "$part/uv.tar.gz"
chmod +x "$part/uv"
for name in $(env | sed -n 's/^\(UV_[A-Z_]*\)=.*/\1/p'); do
  case "$name" in
    UV_PYTHON_INSTALL_MIRROR | UV_NATIVE_TLS | UV_SYSTEM_CERTS | UV_INSECURE_HOST | UV_HTTP_TIMEOUT) ;;
    *) unset "$name" ;; # it would change what is installed, and where
  esac
done
export UV_PYTHON_INSTALL_DIR="$part/pythons" UV_CACHE_DIR="$part/cache" UV_NO_CONFIG=1 TMPDIR="$part"
output=$("$part/uv" python install --no-progress --no-bin "$python" 2>&1) ||
  fail "uv could not install Python $python: $output"
for made in "$part"/pythons/cpython-*; do
  if [ -x "$made/bin/python3" ] && [ ! -h "$made" ]; then
    [ -d "$place" ] || mv "$made" "$place" || fail "cannot create $place"
    break
  fi
done
[ -x "$place/bin/python3" ] || fail "uv left no Python in $part/pythons"
rm -rf "$part"
reply python "$place/bin/python3"
exit 0
} </dev/null
