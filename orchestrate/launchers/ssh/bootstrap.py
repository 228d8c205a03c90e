"""A Python for a host that has none that fits: brought with uv, by a script of POSIX sh, without root.

uv comes as the archive that its authors publish, pinned by its hash. It is linked statically and starts on any Linux.
uv checks what it downloads against hashes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTES_DOWNLOADED = 60
MEGABYTES_NEEDED = 250
"""uv's archive and program, 22 and 53 MB, are removed at the end; CPython is 30 MB packed and 110 MB unpacked."""

SECONDS = 600.0
"""Longest silence: a download shows nothing until it is complete."""

PYTHON = "3.11"
"""That the locks were made with; see `software.FITTING`."""

PLACE = "python"
"""Folder of the Python that was brought, below ours."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A `.tar.gz` with one program that is wanted.

    Attributes:
        program: Its path in the archive.
    """

    url: str
    sha256: str
    program: str


UV = Archive(
    url="https://github.com/astral-sh/uv/releases/download/0.11.12/uv-x86_64-unknown-linux-musl.tar.gz",
    sha256="591a7557f5ba7e51565f338dd4c50cebc12820ec2ebb8403a4304685f8d53ab9",
    program="uv-x86_64-unknown-linux-musl/uv",
)
"""uv 0.11.12 for x86_64. Source of the hash: astral-sh/setup-uv on GitHub, src/download/checksum/known-checksums.ts."""


def bring_script(root: str, mark: str, archive: Archive = UV) -> str:
    """Write the script that puts a Python below `root`; its answer is lines of JSON after a mark, as an agent's.

    Args:
        root: Our folder on the host; `~` is expanded there.
        mark: Sets the answer apart from what login profiles print.
        archive: uv's.
    """
    values = {
        "@ROOT@": root,
        "@MARK@": mark,
        "@PLACE@": PLACE,
        "@PYTHON@": PYTHON,
        "@URL@": archive.url,
        "@SHA256@": archive.sha256,
        "@PROGRAM@": archive.program,
        "@NEEDED_KB@": str(MEGABYTES_NEEDED * 1000),
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
for tool in gzip tar; do
  has $tool || fail "$tool was looked for and not found. As root: apt-get install $tool"
done
mkdir -p "$root" || fail "$root cannot be made"
free=$(df -Pk "$root" | awk 'NR == 2 {print $4}' 2>/dev/null)
if [ -n "$free" ] && [ "$free" -lt @NEEDED_KB@ ]; then
  fail "a Python needs $((@NEEDED_KB@ / 1000)) MB below $root, and $((free / 1000)) MB are free"
fi
if [ -x "$place/bin/python3" ]; then say python "$place/bin/python3"; exit 0; fi
part=$(mktemp -d "$root/part-XXXXXX") || fail "no folder can be made in $root"
say step "downloading uv"
said=$(fetch "@URL@" "$part/uv.tar.gz" 2>&1) || fail "uv could not be downloaded from @URL@: $said"
found=$(digest "$part/uv.tar.gz" 2>&1)
[ "${found%% *}" = @SHA256@ ] || fail "uv has not the digest @SHA256@: ${found%% /*}"
gzip -dc "$part/uv.tar.gz" | tar -xOf - "@PROGRAM@" > "$part/uv" && [ -s "$part/uv" ] || fail "uv could not be unpacked"
rm "$part/uv.tar.gz"
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
