"""Connections to hosts: ssh commands, host keys, tunnels to Docker engines.

Start with `ssh.py`, which builds ssh command lines, and `conversation.py`, which runs them within limits and explains
their failures. `tunnel.py` forwards the sockets of Docker engines.
"""
