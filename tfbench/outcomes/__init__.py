"""How a repeat ends: status, warnings, record."""
