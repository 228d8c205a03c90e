"""Certificates of the tests' own, made with the openssl command."""

import subprocess
from pathlib import Path
from typing import NamedTuple

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Identity(NamedTuple):
    """A key and its certificate, as PEM files."""

    key: Path
    certificate: Path


class Authority:
    """A certificate authority in a folder, which is made.

    Attributes:
        certificate: What those who trust this authority need.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._key, self.certificate = folder, folder / f"{name}-key.pem", folder / f"{name}.pem"
        self._number = 0
        _openssl(
            *("req", "-x509", *NEW_KEY, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", self._key, "-out", self.certificate),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, name: str, *, server: bool = False, days: int = 2) -> Identity:
        """Issue a certificate for a client or a server on 127.0.0.1 and ::1; `days` of an ended one are negative."""
        self._number += 1
        made = Identity(self._folder / f"{name}-key.pem", self._folder / f"{name}.pem")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        usage = "serverAuth\nsubjectAltName=IP:127.0.0.1,IP:::1" if server else "clientAuth"
        extensions.write_text(f"extendedKeyUsage={usage}\n")
        _openssl("req", "-new", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-set_serial", self._number, "-days", days, "-extfile", extensions, "-out", made.certificate),
        )
        return made


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
