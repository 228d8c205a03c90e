"""Check a Vast template: what `vastai create template` would send is what the file holds."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vastai.api import offers
from vastai.api.query import offers_alias, offers_fields, offers_mult, parse_query

QUERY = (
    "num_gpus=1 gpu_name in [RTX_A4000,RTX_A5000] direct_port_count>=1 reliability>=0.98 verified=true rentable=true"
)


class Client:
    """Keeps what would be sent."""

    def post(self, path: str, json_data: dict[str, Any]) -> SimpleNamespace:
        self.sent = json_data
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: {})


template = json.loads(Path(sys.argv[1]).read_text())
names = {"tag": "image_tag", "onstart": "onstart_cmd", "recommended_disk_space": "disk_space"}
client = Client()
offers.create_template(client, **{names.get(key, key): value for key, value in template.items()})
sent = {key: value for key, value in client.sent.items() if value is not None}
if sent != template:
    sys.exit(f"vastai would send {sent}")
filters = parse_query(QUERY, {}, offers_fields, offers_alias, offers_mult)
if filters != template["extra_filters"]:
    sys.exit(f"vastai would ask for {filters}")
print("1 template")  # noqa: T201
