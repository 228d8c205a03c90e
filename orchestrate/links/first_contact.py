"""First contact with fresh hosts: each is asked for its key once, and the key is kept in the fleet's known-hosts file.

ssh itself asks, because it goes through jump hosts, which `ssh-keyscan` cannot. It writes a new key to a file that is
this connection's own, so that it is certain whose key it is, and refuses a key that differs from the known one.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from orchestrate.errors import Dropped, Unreachable, UserError
from orchestrate.inventory.addresses import HostKeys, SSHAddress
from orchestrate.inventory.hosts import Host
from orchestrate.links.connections import Conversation, persist, ssh_failure, starting
from orchestrate.links.ssh import (
    OWN_CONNECTION,
    HostKey,
    hops,
    known_hosts_files,
    known_hosts_option,
    read_keys,
    remember,
    ssh_command,
)

AT_A_TIME = 64
CONTACT_SECONDS = 60.0
MAX_GREETING_BYTES = 1 << 20
"""Of what a login may print."""


@dataclass(frozen=True, kw_only=True)
class Contact:
    """A machine that ssh connects to.

    Attributes:
        name: Of the host in messages; of a jump host its destination.
        fleet: Whose known-hosts file takes its key.
        login: Where ssh goes.
        keys: Those of the fleet.
    """

    name: str
    fleet: str
    login: SSHAddress
    keys: HostKeys


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A host key that was remembered now.

    Attributes:
        name: Of its machine; see `Contact`.
        fleet: Its fleet.
        key: As the machine offered it.
        file: That has it now.
    """

    name: str
    fleet: str
    key: HostKey
    file: str


def remember_new_keys(hosts: Sequence[Host]) -> list[NewKey]:
    """Query hosts and their jump hosts for their keys, and remember those that are new.

    Who cannot be asked, or offers another key than the known one, is excluded: the probe that follows says why.

    Args:
        hosts: Those that ssh does not reach are excluded.

    Raises:
        UserError: A known-hosts file cannot be written.
    """
    found: list[NewKey] = []
    for contacts in _by_distance(hosts):  # a jump host's key must be known before anybody can go through it
        with ThreadPoolExecutor(min(AT_A_TIME, len(contacts)), thread_name_prefix="contact") as pool:
            offered = list(pool.map(_offered_keys, contacts))
        for contact, keys in zip(contacts, offered, strict=True):
            file = contact.keys.file
            assert file is not None, "hosts of a file have one"
            try:
                new = remember(Path(file), keys)
            except OSError as error:
                raise UserError(
                    f"{file}: cannot be written: {error.strerror}. Check the folder's permissions"
                ) from error
            found += [NewKey(name=contact.name, fleet=contact.fleet, key=key, file=file) for key in new]
    return found


def _by_distance(hosts: Iterable[Host]) -> list[list[Contact]]:
    """Return whom to ask, each once: those reached directly first, then those behind them, and so on."""
    contacts: dict[tuple[str | None, SSHAddress], tuple[int, Contact]] = {}
    for host in hosts:
        if host.login is None:
            continue
        chain = hops(host.login)
        for distance, login in enumerate([*chain, host.login]):
            name = host.name if distance == len(chain) else f"jump host {login.target}"
            contact = Contact(name=name, fleet=host.fleet, login=login, keys=host.host_keys)
            contacts.setdefault((host.host_keys.file, login), (distance, contact))
    distances = sorted({distance for distance, _ in contacts.values()})
    return [[contact for at, contact in contacts.values() if at == distance] for distance in distances]


def _offered_keys(contact: Contact) -> list[HostKey]:
    """Return the keys of a machine that are not known yet."""
    with tempfile.TemporaryDirectory(prefix="tfb-") as folder:
        new = Path(folder) / "known_hosts"
        files = [str(new), *known_hosts_files(contact.login, contact.keys)]
        options = (known_hosts_option(files), "-oStrictHostKeyChecking=accept-new", "-oHashKnownHosts=no")
        flags = ("-T", OWN_CONNECTION, "-oCheckHostIP=no", *options)  # over a shared connection no key would come
        command = ssh_command(contact.login, contact.keys, *flags, remote="exit")

        def connect() -> None:
            with (
                starting(contact.login),
                Conversation(command, b"", seconds=CONTACT_SECONDS, max_bytes=MAX_GREETING_BYTES) as talk,
            ):
                for _ in talk.lines():
                    pass
                code, said = talk.result()
            if not new.exists() and code != 0:
                failure = ssh_failure(contact.login.target, said, code)
                if isinstance(failure, Dropped):
                    raise failure

        with contextlib.suppress(Unreachable):  # a key may have come all the same
            persist(connect)
        return read_keys(new)
