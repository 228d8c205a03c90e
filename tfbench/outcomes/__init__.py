"""How a repeat ends: `outcome` turns an exception into a status and its cause, `findings` writes a record."""
