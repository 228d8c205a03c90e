"""Certificates of the tests' own, made with the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A key and its certificate, as PEM files."""

    key: Path
    certificate: Path


class Authority:
    """A certificate authority in a folder.

    Args:
        folder: An empty folder, or one that is made.
        name: Of the authority.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._own = Identity(folder / f"{name}-key.pem", folder / f"{name}.pem")
        self._number = 0
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self._own.key, "-out", self._own.certificate),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    @property
    def certificate(self) -> Path:
        """What those who trust this authority need."""
        return self._own.certificate

    def issue(self, name: str, *, server: bool = False, days: int = 2) -> Identity:
        """Issue a certificate.

        Args:
            name: Of whom it is for; part of the files' names.
            server: For a server on 127.0.0.1 and ::1, else for a client.
            days: How long it is valid; negative: it ended so long ago.
        """
        self._number += 1
        made = Identity(self._folder / f"{name}-key.pem", self._folder / f"{name}.pem")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        usage = "serverAuth" if server else "clientAuth"
        names = "subjectAltName=IP:127.0.0.1,IP:::1\n" if server else ""
        extensions.write_text(f"extendedKeyUsage={usage}\n{names}")
        _openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", made.key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self._own.certificate, "-CAkey", self._own.key),
            *("-set_serial", self._number, "-days", days, "-extfile", extensions, "-out", made.certificate),
        )
        return made


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
