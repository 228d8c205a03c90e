"""How this machine reaches hosts: ssh commands, host keys, tunnels to Docker engines.

Start with `ssh.py`, which writes every ssh command line, and `connections.py`, which starts them within limits and
explains their failures. `tunnel.py` leads to Docker engines.
"""
