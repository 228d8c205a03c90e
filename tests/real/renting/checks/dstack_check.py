"""Check configurations of dstack by its own models, and the flags in their comments by its own command line."""

import re
import subprocess
import sys
from pathlib import Path

import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration

known = {
    command: subprocess.run(
        [str(Path(sys.executable).parent / "dstack"), *command.split()], capture_output=True, text=True, check=True
    ).stdout
    for command in ("apply --help", "apply --help task", "stop --help")
}
for name in sys.argv[1:]:
    text = Path(name).read_text()
    parse_apply_configuration(yaml.safe_load(text))
    for command, flags in re.findall(r"dstack (apply|stop)((?: +-[^#;\n]*)?)", text):
        for flag in re.findall(r"--[a-z-]+", flags):
            if not any(flag in help_text for name, help_text in known.items() if name.startswith(command)):
                sys.exit(f"dstack {command} has no {flag}")
print(len(sys.argv) - 1, "configurations")  # noqa: T201
