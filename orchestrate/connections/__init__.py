"""Connections to hosts: ssh commands, host keys, tunnels to Docker engines.

Start with `link.py`: a process that answers with lines of JSON, within limits. `ssh.py` builds the commands of ssh and
explains their failures; `tunnel.py` forwards the sockets of Docker engines.
"""
