"""A Python for a host that has none that fits: brought with uv, by a script of POSIX sh, without root.

uv comes from the package index as a wheel that is pinned by its hash; it is linked statically, so that it starts on any
Linux. A wheel is a zip file, which sh cannot read, but each file in it is compressed as gzip does it: between gzip's
header and trailer, made of the constants below, `gzip -d` unpacks and checks it. uv checks what it downloads against
hashes of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MEGABYTES_DOWNLOADED = 60
MEGABYTES_NEEDED = 250
"""uv's wheel and program, 22 and 53 MB, are removed at the end; CPython is 30 MB packed and 110 MB unpacked."""

SECONDS = 600.0
"""Longest silence: a download shows nothing until it is complete."""

PYTHON = "3.11"
"""That the locks were made with; see `software.FITTING`."""

PLACE = "python"
"""Folder of the Python that was brought, below ours."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel with one program that is wanted.

    Attributes:
        offset: Of the compressed program in the file, in bytes; likewise the sizes.
        crc32: Of the program.
    """

    url: str
    sha256: str
    offset: int
    compressed_bytes: int
    program_bytes: int
    crc32: int


UV = Wheel(
    url="https://files.pythonhosted.org/packages/08/ec/73bc3fb4613ad2b21b92a2c23d5bc6dc31c1acb1ca6a70bdc55e7c426ef6/"
    "uv-0.9.9-py3-none-musllinux_1_1_x86_64.whl",
    sha256="1263f03571f3fda44061862c14b92c992102d03f5e1015f3886d9252f9436d60",
    offset=11658,
    compressed_bytes=21272650,
    program_bytes=53042656,
    crc32=1070137791,
)
"""uv 0.9.9 for x86_64: `uv-0.9.9.data/scripts/uv` in it. `python -m zipfile` and `zipfile.ZipInfo` show the figures."""


def bring_script(root: str, mark: str, wheel: Wheel = UV) -> str:
    """Write the script that puts a Python below `root`; its answer is lines of JSON after a mark, as an agent's.

    Args:
        root: Our folder on the host; `~` is expanded there.
        mark: Sets the answer apart from what login profiles print.
        wheel: uv's.
    """
    tail = struct.pack("<II", wheel.crc32, wheel.program_bytes % (1 << 32))
    values = {
        "@ROOT@": root,
        "@MARK@": mark,
        "@PLACE@": PLACE,
        "@PYTHON@": PYTHON,
        "@URL@": wheel.url,
        "@SHA256@": wheel.sha256,
        "@FROM@": str(wheel.offset + 1),
        "@BYTES@": str(wheel.compressed_bytes),
        "@NEEDED_KB@": str(MEGABYTES_NEEDED * 1000),
        "@TAIL@": "".join(f"\\{byte:03o}" for byte in tail),
    }
    script = _SCRIPT
    for name, value in values.items():
        script = script.replace(name, value)
    return script


_SCRIPT = r"""{
say() { printf '{"%s": "%s"}\n' "$1" "$(printf %s "$2" | tr -d '\\"' | tr -c ' -~' ' ' | tail -c 400)"; }
fail() { if [ -n "$part" ]; then rm -rf "$part"; fi; say failed "$1"; exit 0; }
has() { command -v "$1" >/dev/null 2>&1; }
fetch() {
  if has curl; then curl -fsSL --retry 2 --connect-timeout 20 -o "$2" "$1"
  elif has wget; then wget -q -T 20 -O "$2" "$1"
  elif has python3; then python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' "$1" "$2"
  else echo "curl, wget and python3 were looked for and not found. As root: apt-get install curl"; return 1
  fi
}
digest() {
  if has sha256sum; then sha256sum "$1"
  elif has shasum; then shasum -a 256 "$1"
  elif has openssl; then openssl dgst -r -sha256 "$1"
  else echo "sha256sum, shasum and openssl were looked for and not found"
  fi
}
echo @MARK@
part=
root=@ROOT@
place=$root/@PLACE@
case "$(uname -s) $(uname -m)" in
  "Linux x86_64" | "Linux amd64") ;;
  *) fail "no Python can be brought to $(uname -s) $(uname -m), only to Linux x86_64" ;;
esac
has gzip || fail "gzip was looked for and not found. As root: apt-get install gzip"
mkdir -p "$root" || fail "$root cannot be made"
free=$(df -Pk "$root" | awk 'NR == 2 {print $4}' 2>/dev/null)
if [ -n "$free" ] && [ "$free" -lt @NEEDED_KB@ ]; then
  fail "a Python needs $((@NEEDED_KB@ / 1000)) MB below $root, and $((free / 1000)) MB are free"
fi
if [ -x "$place/bin/python3" ]; then say python "$place/bin/python3"; exit 0; fi
part=$(mktemp -d "$root/part-XXXXXX") || fail "no folder can be made in $root"
say step "downloading uv"
said=$(fetch "@URL@" "$part/uv.whl" 2>&1) || fail "uv could not be downloaded from @URL@: $said"
found=$(digest "$part/uv.whl" 2>&1)
[ "${found%% *}" = @SHA256@ ] || fail "uv has not the digest @SHA256@: ${found%% /*}"
{ printf '\037\213\010\000\000\000\000\000\000\003'; tail -c +@FROM@ "$part/uv.whl" | head -c @BYTES@
  printf '@TAIL@'; } | gzip -dc > "$part/uv" || fail "uv could not be unpacked"
rm "$part/uv.whl"
chmod +x "$part/uv"
say step "downloading Python @PYTHON@"
export UV_PYTHON_INSTALL_DIR="$part/pythons" UV_CACHE_DIR="$part/cache" UV_NO_CONFIG=1 TMPDIR="$part"
said=$("$part/uv" python install --no-progress --no-bin @PYTHON@ 2>&1) ||
  fail "uv could not install Python @PYTHON@: $said"
for made in "$part"/pythons/cpython-*; do
  if [ -x "$made/bin/python3" ] && [ ! -h "$made" ]; then
    [ -d "$place" ] || mv "$made" "$place" || fail "$place could not be made"
    break
  fi
done
[ -x "$place/bin/python3" ] || fail "uv left no Python in $part/pythons"
rm -rf "$part"
say python "$place/bin/python3"
exit 0
} </dev/null
"""
