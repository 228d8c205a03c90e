"""Hosts of an ssh configuration, by ssh's own rules: `ssh -G` reports what each alias means."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from orchestrate.errors import UserError
from orchestrate.inventory.sources.machines import STDIN, Found, Machine, destination, output_of, read_text

MAX_DEPTH = 16
"""Of files that include each other, as in ssh itself."""

MAX_ALIASES = 2000
CODE_HOST_USERS = frozenset({"git"})
"""Users of services that give no shell."""


def from_ssh_config(path: str) -> Found:
    """Read the aliases of an ssh configuration, without those that are patterns."""
    if path == STDIN:
        raise UserError("--from ssh-config needs the path of the file, because ssh itself reads it: ~/.ssh/config")
    file = Path(path).expanduser().absolute()
    aliases = list(dict.fromkeys(_aliases(file)))[:MAX_ALIASES]
    usual = file == _folder() / "config"
    found = Found(
        notes=[
            "An ssh configuration does not show which hosts have Docker. For a host without Docker, write {ssh: ALIAS}."
        ]
    )
    machines: dict[tuple[str, ...], str] = {}
    for alias in aliases:
        target = destination(None, alias)
        if target is None:
            found.excluded.append(f"{alias}: not a valid name in hosts.yml")
            continue
        means = _meaning(file, alias)
        if means.get("user") in CODE_HOST_USERS:
            found.excluded.append(f"{alias}: its user is {means['user']}, which has no shell")
            continue
        machine = tuple(means.get(key, "") for key in ("hostname", "port", "proxyjump", "proxycommand"))
        if (first := machines.setdefault(machine, alias)) != alias:
            found.excluded.append(f"{alias}: the same machine as {first} ({machine[0]}, port {machine[1]})")
            continue
        through = means.get("proxyjump", "none")
        found.machines.append(
            Machine(
                name=alias,
                way="docker",
                target=target,
                ssh_config=None if usual else str(file),
                notes=(f"through {through}",) if through != "none" else (),
            )
        )
    return found


def _meaning(file: Path, alias: str) -> dict[str, str]:
    """Return what an alias means, in the words of ssh, which connects to nothing for that."""
    found: dict[str, str] = {}
    for line in output_of("ssh", "-G", "-F", str(file), "--", alias).splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), value)
    return found


def _aliases(file: Path, depth: int = 0) -> Iterator[str]:
    """Yield the names of `Host` lines, also of included files; ssh has no command that lists them."""
    if depth > MAX_DEPTH:
        return
    for line in read_text(str(file)).splitlines():
        try:
            words = shlex.split(re.sub(r"^(\s*\w+)\s*=\s*", r"\1 ", line), comments=True)  # `Keyword=value` too
        except ValueError:  # a quote that never ends: ssh refuses the file, and says where
            words = []
        keyword = words[0].lower() if words else ""
        if keyword == "host":
            yield from (word for word in words[1:] if not set(word) & set("*?!"))
        elif keyword == "include":
            for included in _included(words[1:]):
                yield from _aliases(included, depth + 1)


def _included(patterns: list[str]) -> list[Path]:
    """Return the files that an `Include` names; relative ones are in ~/.ssh, wherever the file itself is."""
    found = []
    for pattern in patterns:
        path = re.sub(r"^~(?=/)", str(_folder().parent), pattern)
        base, rest = (Path("/"), path[1:]) if path.startswith("/") else (_folder(), path)
        found += sorted(item for item in base.glob(rest) if item.is_file()) if rest else []
    return found


def _folder() -> Path:
    """Return the user's folder for ssh; like ssh, whatever HOME is."""
    try:
        import pwd  # only Unix has it

        return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh"
    except (ImportError, KeyError):  # or a user without a name
        return Path("~/.ssh").expanduser()
