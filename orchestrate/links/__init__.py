"""How this machine reaches hosts: ssh commands, host keys, tunnels to Docker engines. See ARCHITECTURE.md."""
