"""Check a SkyPilot task by SkyPilot's own schemas, and the commands in its comments by its own command line."""

import shlex
import sys
from pathlib import Path

import yaml
from sky.client.cli.command import cli
from sky.utils import common_utils, schemas

path = Path(sys.argv[1])
task = yaml.safe_load(path.read_text())
common_utils.validate_schema(task, schemas.get_task_schema(), "task: ")
common_utils.validate_schema(task["resources"], schemas.get_resources_schema(), "resources: ")
commands = [
    line.split("sky ", 1)[1] for line in path.read_text().splitlines() if line.startswith("#") and "sky " in line
]
for command in commands:
    name, *arguments = shlex.split(command)
    cli.commands[name].make_context(name, arguments)
print(len(commands), "commands")  # noqa: T201
